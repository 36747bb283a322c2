"use strict";
// The answers of the cards at any ε. Nothing is computed here: radii were proved in Python, and are only compared.

// The answer of a point at ε: the first of its answers, as ε grows, that is proved beyond it. null: no certificate.
function answerAt(answers, epsilon) {
  for (const [start, end, radius, promise] of answers) {
    if (radius === null || radius > epsilon) return { start, end, promise };
  }
  return null;
}

// The classes of an answer, as numbers.
function setsOf(item, epsilon, prefer) {
  const found = answerAt(item.answers[prefer], epsilon);
  if (found === null) return { core: [], optional: [] };
  return { core: item.best.slice(0, found.start + 1), optional: item.best.slice(found.start + 1, found.end + 1) };
}

// What a card says: pairs of a kind and a text.
function linesOf(item, epsilon, prefer, names, few) {
  const answers = item.answers[prefer];
  const found = answerAt(answers, epsilon);
  if (found === null) {
    const rest = answers.length ? "what does hold: " + answers[answers.length - 1][3] : "not even without a change";
    return [["none", "⊥ no certificate"], ["holds", rest]];
  }
  const { core, optional } = setsOf(item, epsilon, prefer);
  const inside = new Set([...core, ...optional]);
  const out = names.filter((_, index) => !inside.has(index));
  const named = (classes) => classes.map((index) => names[index]).join(", ");
  const lines = [["core", named(core)]];
  if (optional.length) lines.push(["optional", "may also include " + named(optional)]);
  lines.push(["out", "kept out: " + (out.length <= few ? out.join(", ") : `the other ${out.length} classes`)]);
  lines.push(["holds", found.promise]);
  return lines;
}

// Whether a filter shows a point at ε.
function isShown(filter, item, epsilon, prefer) {
  const { core, optional } = setsOf(item, epsilon, prefer);
  if (filter === "none") return core.length === 0;
  if (filter === "several") return core.length + optional.length > 1;
  if (filter === "wrong") return core.length > 0 && !core.includes(item.label) && !optional.includes(item.label);
  return true;
}

function startGallery(gallery, data) {
  const slider = gallery.querySelector("input[type=range]");
  const prefer = gallery.querySelector("select");
  const cards = gallery.querySelectorAll(".cards > li");
  const show = () => {
    const stop = data.stops[Number(slider.value)];
    const filter = gallery.querySelector(".filters input:checked").value;
    let count = 0;
    data.items.forEach((item, place) => {
      const lines = linesOf(item, stop.epsilon, prefer.value, data.names, data.few);
      cards[place].hidden = !isShown(filter, item, stop.epsilon, prefer.value);
      count += cards[place].hidden ? 0 : 1;
      const written = lines.map(([kind, text]) => {
        const line = document.createElement("p");
        line.className = kind;
        line.textContent = text; // never as HTML: names come from users
        return line;
      });
      cards[place].querySelector(".answer").replaceChildren(...written);
    });
    slider.setAttribute("aria-valuetext", stop.text);
    gallery.querySelector("output").textContent = stop.text;
    gallery.querySelector(".whole").textContent = stop.all;
    gallery.querySelector(".count").textContent = `${count} of ${data.items.length} examples.`;
  };
  gallery.querySelector("form").addEventListener("input", show);
  gallery.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  show();
}

function startCopying(button) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(text); // where a page may not write: the reader copies the selection
      button.textContent = "Selected";
    }
  });
}

if (typeof document !== "undefined") {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.querySelectorAll(".gallery").forEach((gallery) => startGallery(gallery, data[Number(gallery.dataset.run)]));
  document.querySelectorAll("button.copy").forEach(startCopying);
} else {
  module.exports = { answerAt, setsOf, linesOf, isShown };
}
