// The page: what is chosen and changed goes to the server, which certifies; what it says is shown.
import { makeFields, withField, writeFields } from "./fields.js";
import { lengthOf, Picture, shareWithin, startPainting } from "./picture.js";
import { byId, showAnswer, showChange, showNothing, showSamples } from "./show.js";

const state = { about: null, picture: null, original: null, changed: null, epsilon: 0, alpha: null };

// ---- asking the server

async function ask(path, body) {
  const headers = typeof body === "string" ? { "Content-Type": "application/json" } : {};
  const options = body === undefined ? {} : { method: "POST", headers, body };
  const reply = await fetch(path, options);
  const found = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(wrong(found, reply.status));
  return found;
}

function wrong(found, status) {
  const detail = found.detail ?? found.error;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((each) => `${each.loc.slice(1).join(" ")}: ${each.msg}`).join("; ");
  return `The server answered with an error, ${status}.`;
}

function complain(error) {
  byId("message").textContent = error ? error.message : "";
  byId("message").hidden = !error;
}

// One question at a time: while one is on its way, only the latest of the next ones is kept. What is shown is always
// the answer for the input and the ε that are shown; of a stroke that goes on, the last place that was answered.
let asking = false;
let again = false;
async function refresh() {
  if (state.original === null) return;
  again = asking;
  if (asking) return;
  asking = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    do {
      again = false;
      const question = asked();
      const { changed, alpha } = state;
      const answer = await ask("page/answer", JSON.stringify({ ...question, changed, alpha }));
      if (!isSame(question, asked())) continue;
      showAnswer(answer);
      showChange(answer.change, answer);
      complain(null);
    } while (again);
  } catch (error) {
    showNothing("No answer came.");
    complain(error);
  } finally {
    asking = false;
    document.body.removeAttribute("aria-busy");
  }
  if (again) refresh();
}

function asked() {
  return { numbers: state.original, epsilon: state.epsilon, prefer: byId("prefer").value };
}

const isSame = (one, two) => Object.keys(one).every((key) => one[key] === two[key]);

// ---- inputs

function choose(numbers, words) {
  state.original = numbers;
  byId("chosen").textContent = words;
  change(null);
}

// Which of the samples is the input, if one is.
function press(place) {
  byId("samples").querySelectorAll("button").forEach((button, other) => button.setAttribute("aria-pressed", String(other === place)));
}

async function chooseSample(place, sample) {
  try {
    const found = await ask(`page/samples/${place}`);
    press(place);
    choose(found.numbers, `${sample.name}, labelled ${sample.label}`);
  } catch (error) {
    complain(error);
  }
}

async function chooseFile(file) {
  if (!file) return;
  try {
    const found = await ask("page/image", file);
    press(null);
    choose(found.numbers, [file.name, found.notes].filter(Boolean).join(": "));
  } catch (error) {
    complain(error);
  }
}

// ---- changes

// `found` is what an attack said of it.
function change(numbers, found = null) {
  state.changed = numbers;
  sayOfAttack(found?.kind, found?.words);
  const now = numbers ?? state.original;
  if (state.picture) {
    state.picture.draw(byId("original"), state.original);
    state.picture.draw(byId("changed"), now);
    state.picture.drawDifference(byId("difference"), state.original, now);
  }
  writeFields(byId("fields"), state.about.fields, state.original, state.original);
  writeFields(byId("changed-fields"), state.about.fields, now, state.original);
  for (const id of ["reset", "shrink", "add-noise", "attack"]) byId(id).disabled = false;
  refresh();
}

// A change in the units of ε: columns of a table are scaled before they are certified.
function scales() {
  const found = new Array(state.original.length).fill(1);
  if (state.about.scaled) state.about.fields.forEach((field) => {
    if (field.high !== undefined) found[field.place] = field.high - field.low || 1;
  });
  return found;
}

function addNoise() {
  if (!byId("noise").reportValidity()) return;
  const wanted = Number(byId("noise").value);
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const noise = state.original.map(normal);
  const norm = lengthOf(noise);
  const scale = scales();
  const now = state.changed ?? state.original;
  change(now.map((number, place) => number + (scale[place] * wanted * noise[place]) / norm));
}

// Shorter, so that it fits: how long it is then, the server says.
function shrink() {
  if (state.changed === null) return;
  const scale = scales();
  const norm = lengthOf(state.changed.map((number, place) => (number - state.original[place]) / scale[place]));
  const share = shareWithin(state.epsilon, norm);
  change(state.changed.map((number, place) => state.original[place] + share * (number - state.original[place])));
}

let attacking = false;
async function attack() {
  if (attacking) return;
  attacking = true;
  const [question, { changed }] = [asked(), state];
  sayOfAttack("waiting", `Attacking, for at most ${state.about.seconds} seconds …`);
  byId("attack").setAttribute("aria-disabled", "true");
  try {
    const found = await ask("page/attack", JSON.stringify(question));
    if (!isSame(question, asked())) sayOfAttack();
    else if (found.numbers && state.changed === changed) {
      change(found.numbers, { ...found, words: `${found.words} What came nearest is shown above.` });
    } else sayOfAttack(found.kind, found.words);
  } catch (error) {
    sayOfAttack();
    complain(error);
  } finally {
    attacking = false;
    byId("attack").removeAttribute("aria-disabled");
  }
}

function sayOfAttack(kind = "", words = "") {
  byId("attack-words").className = kind;
  byId("attack-words").textContent = words;
  byId("attack-words").hidden = !words;
}

// ---- start

// A slider and a number that say the same; `then` gets the value.
function pair(slider, number, then) {
  const [one, two] = [byId(slider), byId(number)];
  const set = (value) => {
    two.dataset.set = value;
    then(Number(value));
  };
  one.addEventListener("input", () => {
    two.value = one.value;
    set(one.value);
  });
  two.addEventListener("input", () => {
    if (!two.checkValidity()) return; // marked by the style; what is shown is still of the last one
    one.value = two.value;
    set(two.value);
  });
  two.addEventListener("change", () => { if (!two.checkValidity()) two.value = two.dataset.set; });
}

function startDrawing() {
  const { about } = state;
  state.picture = new Picture(about.shape, about.low, about.high);
  byId("pictures").hidden = false;
  byId("brush").hidden = false;
  byId("brush-size").value = Math.max(1, Math.round(about.shape[2] / 16));
  const paint = (places) => {
    if (state.original === null) return;
    const numbers = [...(state.changed ?? state.original)];
    const side = Math.max(1, Number(byId("brush-size").value) || 1);
    const [colour, strength] = [state.picture.colour(byId("ink").value), Number(byId("strength").value)];
    for (const [column, row] of places) state.picture.paint(numbers, column, row, side, colour, strength);
    change(numbers);
  };
  startPainting(byId("changed"), state.picture, paint, (column, row) => {
    byId("cursor").hidden = false;
    byId("cursor").textContent = `Cursor at column ${column + 1}, row ${row + 1}: space paints.`;
  });
}

function startFields() {
  makeFields(byId("fields"), state.about.fields, "input", (field, value) => {
    press(null);
    choose(withField(state.original, field, value), "an input of your own");
  });
  makeFields(byId("changed-fields"), state.about.fields, "changed", (field, value) => {
    change(withField(state.changed ?? state.original, field, value));
  });
}

function showAbout(about) {
  state.about = about;
  document.title = `safeset: ${about.name}`;
  byId("title").textContent = about.name;
  byId("about").textContent = `${about.classes} classes, trained for ε = ${about.epsilon_text} (${about.units}). ` +
    `Guarantee ${about.guarantee}.`;
  byId("units").textContent = about.units;
  byId("foot").textContent = `safeset ${about.version}, weights ${about.weights.slice(0, 16)}. Programs ask POST /certify.`;
  const slider = byId("epsilon");
  slider.max = about.farthest;
  slider.step = about.farthest / 400;
  slider.value = about.epsilon;
  byId("epsilon-number").value = byId("epsilon-number").dataset.set = state.epsilon = about.epsilon;
  byId("noise").value = Number((0.9 * about.epsilon).toPrecision(3));
  if (about.alpha !== null) byId("alpha").value = byId("alpha-number").value = byId("alpha-number").dataset.set = state.alpha = about.alpha;
  byId("drop").hidden = !about.files;
  byId("how").textContent = about.kind === "image"
    ? "Draw on the image, add noise, or let the computer attack: inside the ball the promise cannot break; beyond it, it may."
    : "Change the numbers, add noise, or let the computer attack: inside the ball the promise cannot break; beyond it, it may.";
  if (about.kind === "image") startDrawing();
  if (about.fields.length) startFields();
}

// An input to begin with where there is no sample.
function middle() {
  const { shape, low, high, fields } = state.about;
  const numbers = new Array(shape.reduce((one, two) => one * two, 1)).fill((low + high) / 2);
  return fields.reduce((found, field) => withField(found, field, field.texts ? 0 : (field.low + field.high) / 2), numbers);
}

async function start() {
  try {
    showAbout(await ask("page/about"));
    const { samples, why } = await ask("page/samples");
    showSamples(samples, chooseSample);
    byId("samples-why").textContent = why && `No samples: ${why}`;
    byId("samples-why").hidden = !why;
    if (samples.length) await chooseSample(0, samples[0]);
    else choose(middle(), state.about.kind === "image" ? "a grey image: draw on it" : "the middle of each range");
    complain(null);
  } catch (error) {
    complain(error);
  }
}

// What an attack said was about another question.
function askOther() {
  if (!attacking) sayOfAttack();
  refresh();
}
pair("epsilon", "epsilon-number", (epsilon) => { state.epsilon = epsilon; askOther(); });
pair("alpha", "alpha-number", (alpha) => { state.alpha = alpha; refresh(); });
byId("prefer").addEventListener("change", askOther);
for (const id of ["controls", "levels"]) byId(id).addEventListener("submit", (event) => event.preventDefault());
byId("file").addEventListener("change", () => chooseFile(byId("file").files[0]));
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => {
  event.preventDefault();
  byId("drop").classList.toggle("over", kind === "dragover");
  if (kind === "drop" && state.about?.files) chooseFile(event.dataTransfer.files[0]);
});
document.addEventListener("dragleave", () => byId("drop").classList.remove("over"));
byId("add-noise").addEventListener("click", addNoise);
byId("shrink").addEventListener("click", shrink);
byId("reset").addEventListener("click", () => change(null));
byId("attack").addEventListener("click", attack);
start();
