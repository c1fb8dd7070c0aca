// Elements, controls and requests: what all parts of the page share. Text only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") {
      for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    } else if (name.startsWith("on")) {
      node.addEventListener(name.slice(2), value);
    } else {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes, ...children) =>
  build(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

export const percent = (x, digits = 0) => `${(100 * x).toFixed(digits)}%`;

export const plural = (n, word, more = `${word}s`) => `${n} ${n === 1 ? word : more}`;

/** The numbers of a figure, from the server. */
export async function numbers(name, query = {}) {
  const answer = await fetch(`explain/${name}?${new URLSearchParams(query)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error?.message ?? answer.statusText);
  return found;
}

/** A function that runs `work` again for the newest request only; its failures are shown. */
export function latest(work, failed) {
  let running = false;
  let again = false;
  return async function ask() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      do {
        again = false;
        await work();
      } while (again);
    } catch (error) {
      failed(error);
    } finally {
      running = false;
    }
  };
}

let ids = 0;
export const id = (name) => `${name}-${(ids += 1)}`;

/** A labelled range input that shows its value. `show` turns the value into words. */
export function slider({ label, min, max, step, value, show = String }, change) {
  const name = id("slider");
  const output = el("output", { for: name });
  const input = el("input", { type: "range", id: name, min, max, step });
  const tell = () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    input.style.setProperty("--part", (input.value - min) / (input.max - min));
  };
  input.value = value;
  tell();
  input.addEventListener("input", () => {
    tell();
    change(Number(input.value));
  });
  return {
    node: el("div", { class: "slider" }, el("label", { for: name }, label), output, input),
    input,
    get value() {
      return Number(input.value);
    },
    set(next, most = input.max) {
      input.max = most;
      input.value = next;
      tell();
    },
  };
}

/** A group of radio buttons; `options` are [value, label] pairs, the label text or a node. */
export function choice(legend, options, value, change) {
  const name = id("choice");
  const inputs = new Map();
  const labels = options.map(([key, label]) => {
    const input = el("input", { type: "radio", name, value: key, checked: key === value });
    input.addEventListener("change", () => change(key));
    inputs.set(key, input);
    return el("label", {}, input, el("span", {}, label));
  });
  const node = el("fieldset", { class: "choice" }, el("legend", {}, legend), ...labels);
  return { node, set: (key) => (inputs.get(key).checked = true) };
}

export const button = (label, press, attributes) =>
  el("button", { type: "button", onclick: press, ...attributes }, label);

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Draws into a box again whenever its width changes. */
export function onWidth(node, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const next = Math.round(entry.contentRect.width);
    if (next && next !== width) draw((width = next));
  }).observe(node);
}

/** What a figure shows where its numbers cannot be had. */
export function failing(stage) {
  const note = el("p", { class: "notice", role: "alert" });
  return (error) => {
    const lost = error instanceof TypeError;
    note.textContent = lost
      ? "The numbers of this figure cannot be fetched. Is the server still running?"
      : `This figure cannot be shown: ${error.message}`;
    stage.append(note);
  };
}
