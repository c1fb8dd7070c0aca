// Figure 3: rows are the target's distributions, columns the tokens each has read or checks.

import { choice, el, plural } from "./dom.js";

const cell = (kind, word = "") => el("span", { class: `cell ${kind}`, "aria-hidden": "true" }, word);

/** What a row does, in words. */
function sentence(check, number, rejected) {
  const name = `p${number}`;
  if (check.verdict === "unread") {
    return `${name} is not read: its prefix holds the rejected “${rejected}”`;
  }
  if (check.verdict === "accepted") return `${name} draws “${check.drawn}”: accepted`;
  if (check.verdict === "bonus") return `${name} checks nothing and adds the bonus “${check.drawn}”`;
  return `${name} draws “${check.drawn}”: “${check.draft}” is rejected and “${check.drawn}” corrects it`;
}

function row(found, outcome, check, at) {
  const k = found.draft.length;
  const kinds = found.draft.map((_, column) => {
    if (column < at) return column === outcome.accepted ? "read gone" : "read";
    return column === at ? `checked ${check.verdict}` : "empty";
  });
  const cells = kinds.map((kind, column) => cell(kind, kind === "empty" ? "" : found.draft[column]));
  const last = at === k ? cell(`checked ${check.verdict}`, check.drawn ?? "?") : cell("empty");
  const name = el("span", { class: "cell name", "aria-hidden": "true" }, "p", el("sub", {}, at + 1));
  return el(
    "li",
    { class: check.verdict === "unread" ? "grid-row void" : "grid-row" },
    name,
    cell("read", `… ${found.prefix.at(-1)}`),
    ...cells,
    last,
    el("span", { class: "grid-said" }, sentence(check, at + 1, found.draft[outcome.accepted])),
  );
}

export function checks(stage, found) {
  const k = found.draft.length;
  const list = el("ol", { class: "grid" });
  const caption = el("p", { class: "caption", "aria-live": "polite" });
  const options = [
    ...found.draft.map((word, at) => [String(at), `“${word}” (${at + 1})`]),
    [String(k), "nothing"],
  ];
  const draw = (key) => {
    const outcome = found.outcomes[Number(key)];
    list.replaceChildren(...outcome.checks.map((check, at) => row(found, outcome, check, at)));
    const lost = outcome.checks.filter((check) => check.verdict === "unread").length;
    caption.textContent = lost
      ? `${plural(outcome.accepted + 1, "distribution")} used; ${lost} computed for nothing.`
      : `All ${plural(k + 1, "distribution")} used.`;
  };
  const head = el(
    "div",
    { class: "grid-row head", "aria-hidden": "true" },
    cell("name"),
    cell("title", "prefix"),
    ...found.draft.map((_, at) => el("span", { class: "cell title" }, "x", el("sub", {}, at + 1))),
    cell("title", "next"),
    el("span", { class: "grid-said" }),
  );
  stage.append(choice("Rejected", options, "1", draw).node, head, list, caption, legend());
  draw("1");
}

function legend() {
  const item = (kind, text) => el("li", {}, el("i", { class: `cell-swatch ${kind}` }), text);
  return el(
    "ul",
    { class: "legend" },
    item("read", "has read it"),
    item("checked accepted", "checks it: accepted"),
    item("checked correction", "checks it: rejected"),
    item("checked bonus", "adds the bonus"),
    item("checked unread", "not read"),
  );
}
