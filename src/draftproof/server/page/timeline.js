// Rounds from left to right: above the line the tokens of each by origin, below it its seconds.

import { el, percent, svg } from "./dom.js";
import { SIDE, shape } from "./origins.js";

const WIDTH = SIDE + 3;
const DOWN = 52;
const PARTS = ["draft", "verify", "other"];
const ms = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;

export class Timeline {
  #rounds = 0;
  #highest = 1;
  #slowest = 1e-6;
  #totals = { draft: 0, verify: 0, other: 0 };
  #tokens = svg("g");
  #times = svg("g", { class: "times" });
  #line = svg("line", { class: "rule", x1: 0, y1: 0, y2: 0 });
  #drawing = svg("svg", { role: "img" }, this.#line, this.#tokens, this.#times);
  #box = el("div", { class: "scroll timeline", tabindex: "0", role: "region" }, this.#drawing);
  #said = el("p", { class: "said" });
  node = el("div", { class: "timeline-box" }, this.#box, this.#said);

  constructor(name) {
    this.#box.setAttribute("aria-label", name);
  }

  /** One more round. */
  add({ pieces, seconds, drafted, accepted, evaluated }) {
    const x = this.#rounds * WIDTH + 1;
    const origins = pieces.map((piece) => piece.origin);
    const lost = Array(Math.max(0, drafted - accepted)).fill("rejected");
    const group = svg("g", {}, svg("title", {}, told(this.#rounds + 1, seconds, origins, lost.length)));
    [...origins, ...lost].forEach((origin, at) => {
      const mark = shape(origin, x, -(at + 1) * (SIDE + 1) - 2);
      if (at >= origins.length + (evaluated - accepted)) mark.classList.add("discarded");
      group.append(mark);
    });
    this.#tokens.append(group);
    this.#addTimes(x, seconds);
    this.#rounds += 1;
    this.#highest = Math.max(this.#highest, origins.length + lost.length);
    this.#fit();
  }

  /** The first round reads the prompt, too: it is only measured against until there are others. */
  #addTimes(x, seconds) {
    if (this.#rounds === 1) {
      this.#slowest = 1e-6;
      this.#totals = { draft: 0, verify: 0, other: 0 };
    }
    let from = 0;
    for (const part of PARTS) {
      const height = seconds[part] ?? 0;
      this.#totals[part] += height;
      this.#times.append(svg("rect", { class: part, x, y: from, width: SIDE, height }));
      from += height;
    }
    this.#slowest = Math.max(this.#slowest, from);
  }

  #fit() {
    const up = this.#highest * (SIDE + 1) + 4;
    const width = Math.max(1, this.#rounds * WIDTH + 2);
    const height = up + DOWN + 6;
    this.#line.setAttribute("x2", width);
    this.#times.setAttribute("transform", `translate(0 3) scale(1 ${DOWN / this.#slowest})`);
    this.#drawing.setAttribute("viewBox", `0 ${-up} ${width} ${height}`);
    this.#drawing.setAttribute("width", width);
    this.#drawing.setAttribute("height", height);
    this.#box.scrollLeft = this.#box.scrollWidth;
    this.#tell();
  }

  #tell() {
    const { draft, verify, other } = this.#totals;
    const all = draft + verify + other || 1;
    const item = (kind, text) => el("span", {}, el("i", { class: `swatch ${kind}` }), text);
    this.#said.replaceChildren(
      item("draft", `drafting ${percent(draft / all)}`),
      item("verify", `verifying ${percent(verify / all)}`),
      item("other", `the rest ${percent(other / all)}`),
      el("span", {}, `slowest round ${ms(this.#slowest)}`),
      el("span", {}, this.#rounds > 1 ? "without the first, which reads the prompt" : ""),
    );
    this.#drawing.setAttribute("aria-label", `${this.#rounds} rounds; ${this.#said.textContent}`);
  }
}

function told(number, seconds, origins, lost) {
  const kept = origins.join(", ") || "no text";
  return `Round ${number}: ${kept}${lost ? `; ${lost} not kept` : ""}. Draft ${ms(seconds.draft)}, verify ${ms(seconds.verify)}`;
}
