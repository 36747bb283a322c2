// What the server said, drawn: nothing is decided here. Texts never become HTML: names come from users.

export const byId = (id) => document.getElementById(id);

export function make(tag, options = {}, ...children) {
  const found = document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (key === "text") found.textContent = value;
    else if (key === "class") found.className = value;
    else found.setAttribute(key, value);
  }
  found.append(...children);
  return found;
}

export function showAnswer(answer) {
  const lines = answer.lines.map(([kind, text]) => make("p", { class: kind, text }));
  if (answer.exact) lines.push(make("p", { class: "holds", text: answer.exact }));
  byId("said").replaceChildren(...lines);
  byId("said").className = answer.certified ? "said proved" : "said unproved";
  byId("bars").hidden = answer.bars.length === 0;
  byId("bar-list").replaceChildren(...answer.bars.map((bar) => barOf(bar, answer)));
  byId("caption").textContent = answer.caption;
  for (const [role, words] of Object.entries(answer.keys)) byId(`key-${role}`).textContent = words;
  byId("more").textContent = answer.more;
  byId("covers").textContent = `The proof covers ${answer.covers}.`;
  byId("numbers").replaceChildren(...answer.bars.map((bar) => make("tr", {},
    make("th", { scope: "row", text: bar.name }),
    make("td", { class: "number", text: bar.logit }),
    make("td", { text: bar.other }),
    make("td", { class: "number", text: bar.gap }),
    make("td", { class: "number", text: bar.allowance }),
    make("td", { class: "number", text: bar.left }),
    make("td", { class: "number", text: bar.reach_text }))));
  byId("coverage").hidden = answer.set === null;
  if (answer.set !== null) {
    byId("covered").textContent = `covers: ${answer.set.classes.join(", ")}`;
    byId("covered-words").textContent = `${answer.set.words}. No certificate: this is about the true class, on average.`;
  }
}

function barOf(bar, answer) {
  const share = (radius) => `${Math.min(100, (100 * (radius === null ? answer.scale : radius)) / answer.scale)}%`;
  const length = make("span", { class: `length is-${bar.role}` });
  length.style.width = share(bar.reach);
  const allowance = make("span", { class: "allowance" });
  allowance.style.width = share(answer.epsilon);
  const track = make("span", { class: "track", "aria-hidden": "true" }, length, allowance);
  const said = make("span", { class: "reach" },
    make("b", { text: bar.reach_text }), " ", make("span", { class: "dim", text: bar.margin }));
  const name = make("span", { class: "class" },
    make("b", { text: bar.name }), make("span", { class: "role", text: bar.said }));
  return make("li", { class: `is-${bar.role}` }, name, track, said);
}

export function showChange(change, answer) {
  byId("verdict").hidden = false;
  byId("norm").textContent = change.norm_text;
  byId("best").replaceChildren(...change.best.map((each, place) => make("span",
    { class: each.in ? "chip in" : "chip", text: `${place + 1}. ${each.name}` })));
  byId("verdict-words").textContent = change.words;
  byId("verdict").className = change.kind;
  const norm = change.norm ?? 1e100;
  const radius = answer.radius ?? 2 * Math.max(norm, answer.epsilon);
  const whole = 1.15 * Math.max(radius, answer.epsilon, norm, 1e-12);
  const share = (number) => `${(100 * number) / whole}%`;
  const gauge = byId("gauge");
  gauge.querySelector(".ball").style.width = share(Math.min(answer.epsilon, radius));
  gauge.querySelector(".edge").style.left = share(answer.epsilon);
  gauge.querySelector(".proved").style.width = share(radius);
  gauge.querySelector(".dot").style.left = share(norm);
  const proved = `proved below ${answer.radius_text}`;
  gauge.setAttribute("aria-label", `Norm of the change ${change.norm_text}; ball ε = ${answer.epsilon_text}; ${proved}`);
}

// Nothing is shown as certified when no answer came.
export function showNothing(words) {
  byId("said").replaceChildren(make("p", { class: "dim", text: words }));
  byId("said").className = "said";
  for (const id of ["bars", "coverage", "verdict"]) byId(id).hidden = true;
}

export function showSamples(list, choose) {
  byId("samples").replaceChildren(...list.map((sample, place) => {
    const button = make("button", { type: "button", "aria-pressed": "false",
      "aria-label": `Sample ${place + 1}: ${sample.label}, ${sample.name}`, title: `${sample.label}, ${sample.name}` });
    if (sample.picture) button.append(make("img", { src: sample.picture, alt: "" }));
    else button.append(make("b", { text: sample.label }), make("span", { text: sample.numbers.slice(0, 2).join(", ") }));
    button.addEventListener("click", () => choose(place, sample));
    return button;
  }));
}
