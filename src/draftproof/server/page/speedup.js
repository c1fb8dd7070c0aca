// Figure 5: the speedup model; a curve over draft lengths 1 to 12.

import { el, failing, latest, numbers, onWidth, slider, svg } from "./dom.js";

const HEIGHT = 230;
const EDGE = { left: 38, right: 14, top: 16, bottom: 34 };

function scales(points, width) {
  const most = Math.max(1.25, ...points.map((point) => point.speedup)) * 1.08;
  const across = (width - EDGE.left - EDGE.right) / (points.length - 1);
  return {
    most,
    x: (k) => EDGE.left + (k - 1) * across,
    y: (gain) => HEIGHT - EDGE.bottom - (gain / most) * (HEIGHT - EDGE.top - EDGE.bottom),
  };
}

function axes(points, { x, y, most }, width) {
  const step = [0.25, 0.5, 1, 2, 5].find((one) => most / one <= 6) ?? 10;
  const levels = Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  return [
    ...levels.flatMap((gain) => [
      svg("line", { class: "rule", x1: EDGE.left, x2: width - EDGE.right, y1: y(gain), y2: y(gain) }),
      svg("text", { x: EDGE.left - 6, y: y(gain) + 4, "text-anchor": "end" }, `${gain}×`),
    ]),
    ...points.map(({ k }) =>
      svg("text", { x: x(k), y: HEIGHT - EDGE.bottom + 16, "text-anchor": "middle" }, k),
    ),
    svg("line", { class: "even", x1: EDGE.left, x2: width - EDGE.right, y1: y(1), y2: y(1) }),
    svg("text", { x: width - EDGE.right, y: HEIGHT - 3, "text-anchor": "end" }, "draft length k"),
  ];
}

function chart(found, width) {
  const { points, chosen, best } = found;
  const scale = scales(points, width);
  const path = points.map(({ k, speedup }) => `${scale.x(k)},${scale.y(speedup)}`).join(" ");
  const dots = points.map(({ k, speedup }) =>
    svg("circle", {
      class: k === chosen.k ? "dot chosen" : k === best ? "dot best" : "dot",
      cx: scale.x(k),
      cy: scale.y(speedup),
      r: k === chosen.k ? 6 : k === best ? 5 : 3,
    }),
  );
  const label = `Speedup by draft length: ${points.map((p) => `${p.k}: ${p.speedup.toFixed(2)}`).join(", ")}`;
  return svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": label },
    ...axes(points, scale, width),
    svg("polyline", { class: "curve", points: path }),
    ...dots,
  );
}

const figure = (value, text) =>
  el("p", { class: "number" }, el("strong", {}, value), el("span", {}, text));

export function speedup(stage) {
  let found = null;
  let width = 640;
  const box = el("div", { class: "chart-box" });
  const results = el("div", { class: "numbers", "aria-live": "polite" });
  const ask = latest(async () => {
    found = await numbers("speedup", {
      alpha: alpha.value,
      draft_length: length.value,
      draft_cost: draft.value,
      verify_cost: verify.value,
    });
    draw();
  }, failing(stage));
  const two = (x) => x.toFixed(2);
  const steps = (x) => `${two(x)} steps`;
  const control = (label, min, max, step, value, show) =>
    slider({ label, min, max, step, value, show }, ask);
  const alpha = control("Acceptance rate α", 0, 1, 0.01, 0.8, two);
  const length = control("Draft length k", 1, 12, 1, 4);
  const draft = control("Draft cost c", 0, 1, 0.01, 0.1, steps);
  const verify = control("Verify cost v", 0.5, 4, 0.05, 1, steps);

  function draw() {
    const { chosen, best, points } = found;
    results.replaceChildren(
      figure(chosen.tokens.toFixed(2), "tokens per round"),
      figure(`${chosen.speedup.toFixed(2)}×`, chosen.speedup < 1 ? "a loss" : "speedup"),
      figure(`k = ${best}`, `is best, ${points[best - 1].speedup.toFixed(2)}×`),
    );
    box.replaceChildren(chart(found, width));
  }
  stage.append(
    el("div", { class: "controls" }, alpha.node, length.node, draft.node, verify.node),
    results,
    box,
  );
  onWidth(box, (next) => {
    width = next;
    if (found) draw();
  });
  return ask();
}
