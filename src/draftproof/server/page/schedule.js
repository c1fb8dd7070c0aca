// Figure 1: the same text by an ordinary and by a speculative schedule, with a playhead over both.

import { button, calm, el, failing, latest, numbers, plural, slider } from "./dom.js";

const SECONDS_A_STEP = 0.45;

function lane(name) {
  const track = el("div", { class: "track" });
  const text = el("p", { class: "words" });
  const head = el("p", { class: "lane-head" }, el("b", {}, name), el("span", {}));
  return { node: el("div", { class: "lane" }, head, track, text), track, text, head };
}

function block(kind, start, width, total) {
  const place = { left: `${(100 * start) / total}%`, width: `${(100 * width) / total}%` };
  return el("i", { class: `block ${kind}`, style: place });
}

/** The blocks of a lane, and its words with the time each of them is there. */
function fill(lane, run, total) {
  const blocks = [];
  const words = [];
  for (const round of run.rounds) {
    const each = round.draft / (round.drafted || 1);
    for (let at = 0; at < round.drafted && each > 0; at += 1) {
      blocks.push(block("draft", round.start + at * each, each, total));
    }
    blocks.push(block("verify", round.start + round.draft, round.verify, total));
    const end = round.start + round.draft + round.verify;
    for (const { word, origin } of round.tokens) {
      words.push({ end, node: el("span", { class: `token ${origin}` }, word) });
    }
  }
  lane.track.replaceChildren(...blocks, el("i", { class: "playhead" }));
  lane.text.replaceChildren(...words.flatMap(({ node }) => [node, " "]));
  lane.head.lastChild.textContent =
    `${plural(run.passes, "pass", "passes")}, ${run.total.toFixed(1)} steps`;
  return words;
}

export function schedule(stage) {
  let found = null;
  let seed = 5;
  let words = [];
  let timer = 0;
  const plain = lane("The target alone");
  const drafted = lane("With a drafter");
  const result = el("p", { class: "result" });

  const ask = latest(async () => {
    found = await numbers("schedule", {
      draft_length: length.value,
      draft_cost: draft.value,
      verify_cost: verify.value,
      seed,
    });
    draw();
  }, failing(stage));

  const length = slider(
    { label: "Draft length k", min: 1, max: 8, step: 1, value: 4 },
    ask,
  );
  const cost = (x) => `${x.toFixed(2)} steps`;
  const draft = slider(
    { label: "Draft cost c", min: 0, max: 1, step: 0.05, value: 0.1, show: cost },
    ask,
  );
  const verify = slider(
    { label: "Verify cost v", min: 0.5, max: 3, step: 0.05, value: 1, show: cost },
    ask,
  );
  const time = slider(
    { label: "Time", min: 0, max: 16, step: 0.05, value: 16, show: (x) => `${x.toFixed(1)} steps` },
    () => {
      stop();
      move();
    },
  );

  function draw() {
    const total = Math.max(found.ordinary.total, found.speculative.total);
    words = [...fill(plain, found.ordinary, total), ...fill(drafted, found.speculative, total)];
    stop();
    time.set(total, total);
    const gain = found.speedup;
    result.replaceChildren(
      el("strong", {}, `${gain.toFixed(2)}×`),
      gain >= 1 ? " as fast" : " as fast: a loss",
      found.same ? ", and word for word the same" : "",
    );
    move();
  }

  function move() {
    const now = time.value;
    const part = `${(100 * now) / time.input.max}%`;
    for (const { track } of [plain, drafted]) track.lastChild.style.setProperty("left", part);
    for (const { node, end } of words) node.classList.toggle("ahead", end > now + 1e-6);
  }

  function stop() {
    cancelAnimationFrame(timer);
    timer = 0;
    play.textContent = "Play";
  }

  function run(before) {
    timer = requestAnimationFrame((now) => {
      const next = time.value + (now - before) / 1000 / SECONDS_A_STEP;
      // A range input rounds to its steps: time that would be lost is kept for the next frame.
      const moved = next - time.value >= 0.05;
      if (moved) time.set(Math.min(next, time.input.max));
      move();
      if (time.value >= time.input.max) stop();
      else run(moved ? now : before);
    });
  }

  const play = button("Play", () => {
    if (timer) return stop();
    if (calm()) {
      time.set(time.value >= time.input.max ? 0 : Math.min(time.value + 1, time.input.max));
      return move();
    }
    if (time.value >= time.input.max) time.set(0);
    play.textContent = "Pause";
    return run(performance.now());
  });
  const other = button("Another text", () => {
    seed += 1;
    ask();
  });

  stage.append(
    el("div", { class: "controls" }, length.node, draft.node, verify.node),
    el("div", { class: "lanes" }, plain.node, drafted.node),
    el("div", { class: "bar" }, play, other, time.node),
    result,
    legend(),
  );
  return ask();
}

function legend() {
  const item = (kind, text) => el("li", {}, el("i", { class: `swatch ${kind}` }), text);
  const word = (kind, text) => el("li", {}, el("span", { class: `token ${kind}` }, text));
  return el(
    "ul",
    { class: "legend" },
    item("draft", "a token is drafted"),
    item("verify", "the target’s pass"),
    word("accepted", "accepted draft"),
    word("correction", "correction"),
    word("bonus", "bonus"),
    word("plain", "plain"),
  );
}
