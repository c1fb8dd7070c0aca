// Where a token comes from: its name, and its shape in timelines and legends.

import { el, svg } from "./dom.js";

export const SIDE = 9;

const MEANINGS = {
  accepted: "accepted draft",
  correction: "correction after a rejected draft",
  bonus: "bonus after full acceptance",
  plain: "plain, no draft",
  forced: "forced by a grammar",
  predicted: "of a predicted text",
};
export const ORIGINS = Object.keys(MEANINGS);

/** Paths on a square of 7. */
const SHAPES = {
  accepted: "M0 0H7V7H0Z",
  correction: "M3.5 0L7 7H0Z",
  bonus: "M3.5 0A3.5 3.5 0 1 1 3.49 0Z",
  plain: "M1 1H6V6H1Z",
  forced: "M3.5 0L7 3.5L3.5 7L0 3.5Z",
  predicted: "M1.5 0H5.5L7 3.5L5.5 7H1.5L0 3.5Z",
  rejected: "M1 1L6 6M6 1L1 6",
};

export const shape = (origin, x = 0, y = 0) =>
  svg("path", {
    class: `shape ${origin}`,
    d: SHAPES[origin],
    transform: `translate(${x} ${y}) scale(${SIDE / 7})`,
  });

/** Blanks before a word stay unmarked, so that tokens stand apart. */
function marked(text, mark) {
  const word = text.trimStart();
  return word ? [text.slice(0, text.length - word.length), mark(word)] : [mark(text)];
}

/** A token's text, marked by its origin: nodes. */
export function token(text, origin) {
  const known = origin in MEANINGS ? origin : "plain";
  const attributes = { class: `token ${known}`, title: MEANINGS[known] };
  return marked(text, (word) => el("span", attributes, word));
}

export const rejected = (text) =>
  marked(text, (word) => el("del", { class: "token rejected", title: "rejected draft" }, word));

export function legend() {
  const icon = (origin) =>
    svg("svg", { class: "icon", viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" }, shape(origin));
  return el(
    "ul",
    { class: "legend", "aria-label": "Origins of tokens" },
    ...ORIGINS.map((origin) => el("li", {}, icon(origin), token(MEANINGS[origin], origin))),
    el("li", {}, icon("rejected"), rejected("rejected draft")),
  );
}
