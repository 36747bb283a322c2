// The numbers of a table as fields: a slider and a number for each column, a list for a column of texts.
import { make } from "./show.js";

const MIXED = "-1"; // of no text alone: noise and attacks move the numbers that texts are encoded by

// Fill a box with fields; `set(field, value)` is called with what a person enters.
export function makeFields(box, fields, kind, set) {
  box.hidden = false;
  box.replaceChildren(...fields.map((field, number) => {
    const id = `${box.id}-${number}`;
    const label = make("label", { for: id, text: field.name }, make("span", { class: "spoken", text: `, ${kind}` }));
    const inputs = field.texts ? [listOf(field, id, set)] : numbersOf(field, id, kind, set);
    for (const input of inputs) input.dataset.field = number;
    return make("div", { class: "field" }, label, ...inputs, make("span", { class: "was dim" }));
  }));
}

function listOf(field, id, set) {
  const options = field.texts.map((text, place) => make("option", { value: place, text }));
  const select = make("select", { id }, ...options, make("option", { value: MIXED, text: "a mixture", disabled: "", hidden: "" }));
  select.addEventListener("change", () => set(field, Number(select.value)));
  return select;
}

function numbersOf(field, id, kind, set) {
  const step = (field.high - field.low) / 200 || 0.01;
  const slider = make("input", { id, type: "range", min: field.low, max: field.high, step });
  const typed = make("input", { type: "number", step: "any", "aria-label": `${field.name}, ${kind}, as a number` });
  for (const input of [slider, typed]) input.addEventListener("input", () => {
    if (input.value !== "") set(field, Number(input.value));
  });
  return [slider, typed];
}

// The numbers with a field set to a value.
export function withField(numbers, field, value) {
  const found = [...numbers];
  if (field.texts) field.texts.forEach((_, place) => { found[field.place + place] = Number(place === value); });
  else found[field.place] = value;
  return found;
}

// Write numbers into the fields, and beside them what they were.
export function writeFields(box, fields, numbers, original) {
  for (const input of box.querySelectorAll("[data-field]")) {
    const field = fields[Number(input.dataset.field)];
    input.parentElement.querySelector(".was").textContent = was(field, numbers, original);
    if (input === document.activeElement && input.type === "number") continue; // it is being typed
    input.value = field.texts ? textOf(field, numbers) : input.type === "range" ? numbers[field.place] : short(numbers[field.place]);
  }
}

function was(field, numbers, original) {
  const places = field.texts ? field.texts.map((_, place) => field.place + place) : [field.place];
  if (places.every((place) => numbers[place] === original[place])) return "";
  return `was ${field.texts ? field.texts[Number(textOf(field, original))] ?? "a mixture" : short(original[field.place])}`;
}

const textOf = (field, numbers) => String(field.texts.findIndex((_, one) =>
  field.texts.every((__, other) => numbers[field.place + other] === Number(one === other))));
const short = (number) => Number(number.toPrecision(6));
