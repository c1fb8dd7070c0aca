// Figure 4: accepted and corrected mass, for every mass the draft may give to one token.

import { button, el, percent, slider } from "./dom.js";

const COLUMNS = [
  ["target p", (s, i) => [["target", s.p[i]]], (s) => sum(s.p)],
  ["draft q", (s, i) => [["draft", s.q[i]]], (s) => sum(s.q)],
  ["ac\u00adcepted", (s, i) => [["accepted", s.accepted[i]]], (s) => sum(s.accepted)],
  ["correc\u00adtion", (s, i) => [["correction", s.correction[i]]], (s) => sum(s.correction)],
  [
    "output",
    (s, i) => [["accepted", s.accepted[i]], ["correction", s.correction[i]]],
    (s) => sum(s.output),
  ],
];

const sum = (values) => values.reduce((a, b) => a + b, 0);

function bar(parts) {
  const pieces = parts.map(([kind, mass]) => el("i", { class: kind, style: { "--p": mass } }));
  const total = sum(parts.map(([, mass]) => mass));
  return el("td", {}, el("span", { class: "mass" }, pieces), total.toFixed(3));
}

function body(found, step) {
  return found.tokens.map((word, i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, word),
      ...COLUMNS.map(([, parts]) => {
        const cell = bar(parts(step, i));
        const outlined = parts(step, i)[0][0] === "accepted";
        if (outlined) cell.firstChild.append(el("b", { style: { "--p": step.p[i] } }));
        return cell;
      }),
    ),
  );
}

export function correction(stage, found) {
  const rows = el("tbody");
  const foot = el("tfoot");
  const result = el("p", { class: "result", "aria-live": "polite" });
  const control = slider(
    {
      label: `The draft’s mass on “${found.tokens[0]}”`,
      min: 0,
      max: found.steps.length - 1,
      step: 1,
      value: 70,
      show: (at) => found.steps[at].mass.toFixed(2),
    },
    draw,
  );

  function draw(at) {
    const step = found.steps[at];
    rows.replaceChildren(...body(found, step));
    const totals = COLUMNS.map(([, , total]) => el("td", {}, total(step).toFixed(3)));
    foot.replaceChildren(el("tr", {}, el("th", { scope: "row" }, "sum"), ...totals));
    result.replaceChildren(
      el("strong", {}, percent(step.rate)),
      " accepted. Output and p differ by ",
      el("span", { class: "gap" }, step.gap ? step.gap.toExponential(0) : "0"),
      step.gap && step.gap < 1e-12 ? ", which is rounding." : ".",
    );
  }

  const preset = (label, at) =>
    button(label, () => {
      control.set(at);
      draw(at);
    });
  const equal = found.steps.findIndex((step) => step.mass === found.equal);
  const last = found.steps.length - 1;
  stage.append(
    control.node,
    el(
      "div",
      { class: "bar" },
      preset("Draft equals target", equal),
      preset("Far too bold", last),
      preset("Never says it", 0),
    ),
    el(
      "table",
      { class: "masses" },
      el(
        "thead",
        {},
        el("tr", {}, el("td"), ...COLUMNS.map(([name]) => el("th", { scope: "col" }, name))),
      ),
      rows,
      foot,
    ),
    result,
  );
  draw(control.value);
}
