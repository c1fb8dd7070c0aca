// The server's own numbers, asked for once a second while they are looked at.

import { el, percent, plural, svg } from "./dom.js";

const EVERY = 1000;
const KEPT = 60;

const count = new Intl.NumberFormat("en").format;
const sum = (values) => values.reduce((a, b) => a + b, 0);
const ratio = (a, b) => (b ? a / b : null);

function duration(seconds) {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  const [hours, minutes, rest] = parts;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

function row(name, part, text, kind) {
  return el(
    "li",
    {},
    el("span", { class: "length-name" }, name),
    el("span", { class: "mass" }, el("i", { class: kind, style: { "--p": part } })),
    el("span", { class: "length-chance" }, text),
  );
}

function card(title, note, rows) {
  let body = rows;
  if (Array.isArray(rows)) {
    body = rows.length ? el("ol", { class: "lengths" }, rows) : el("p", { class: "note" }, "nothing yet");
  }
  return el("section", { class: "rule-card" }, el("h2", {}, title), el("p", { class: "note" }, note), body);
}

function positions({ evaluated_at_position: judged, accepted_at_position: kept }) {
  return judged.map((all, at) => {
    const part = ratio(kept[at] ?? 0, all) ?? 0;
    return row(at + 1, part, `${percent(part)} of ${count(all)}`, "accepted");
  });
}

function lengths({ draft_lengths: found }) {
  const pairs = Object.entries(found).sort(([a], [b]) => a - b);
  const all = sum(Object.values(found));
  return pairs.map(([k, rounds]) => row(k, rounds / all, plural(rounds, "round"), "draft"));
}

function speeds({ tokens_per_second: { speculative, plain } }) {
  const most = Math.max(speculative ?? 0, plain ?? 0) || 1;
  const told = (speed) => (speed === null ? "not measured yet" : `${speed.toFixed(1)} tokens/s`);
  return [
    row("with", (speculative ?? 0) / most, told(speculative), "accepted"),
    row("without", (plain ?? 0) / most, told(plain), "verify"),
  ];
}

function gain({ tokens_per_second: { speculative, plain } }) {
  if (!speculative || !plain) return "Both are measured while the server runs.";
  return `Speculation makes it ${(speculative / plain).toFixed(2)}× as fast.`;
}

/** Tokens per second of the last minute. */
function spark(speeds) {
  if (!speeds.some(Boolean)) return el("p", { class: "note" }, "nothing is running");
  const most = Math.max(1, ...speeds);
  const points = speeds.map((speed, at) => `${(at / (KEPT - 1)) * 240},${46 - (44 * speed) / most}`);
  return svg(
    "svg",
    { class: "spark", viewBox: "0 0 240 48", role: "img", "aria-label": `Now ${speeds.at(-1) ?? 0} tokens per second` },
    svg("line", { class: "rule", x1: 0, x2: 240, y1: 46, y2: 46 }),
    svg("polyline", { class: "curve", points: points.join(" ") }),
  );
}

function headline(stats, speed) {
  const rate = ratio(stats.accepted, sum(stats.evaluated_at_position));
  const length = ratio(stats.completion_tokens, stats.rounds);
  const pairs = [
    [`${Math.round(speed)}`, "tokens/s now"],
    [rate === null ? "–" : percent(rate), "of drafts accepted"],
    [length === null ? "–" : length.toFixed(2), "tokens per pass"],
    [count(stats.completion_tokens), "tokens written"],
    [count(stats.running), `running, ${count(stats.waiting)} waiting`],
    [count(stats.cache_tokens), "tokens cached"],
    [duration(stats.uptime), "up"],
  ];
  return pairs.map(([value, name]) =>
    el("p", { class: "number" }, el("strong", {}, value), el("span", {}, name)),
  );
}

class Live {
  #server;
  #shown = false;
  #timer = 0;
  #before = null;
  #speeds = [];
  #numbers = el("div", { class: "numbers" });
  #cards = el("div", { class: "cards" });
  #alert = el("p", { class: "notice", role: "status", hidden: true });

  constructor(panel, server) {
    this.#server = server;
    panel.append(
      el("h1", {}, "Live"),
      this.#alert,
      this.#numbers,
      this.#cards,
    );
    document.addEventListener("shown", ({ detail }) => {
      this.#shown = detail === "live";
      this.#turn();
    });
    document.addEventListener("visibilitychange", () => this.#turn());
  }

  #turn() {
    const watched = this.#shown && !document.hidden;
    if (!watched) {
      clearTimeout(this.#timer);
      this.#timer = 0;
      this.#before = null;
    } else if (!this.#timer) {
      this.#timer = setTimeout(() => this.#ask(), 0);
    }
  }

  async #ask() {
    const turn = this.#timer;
    try {
      const stats = await this.#server.stats();
      this.#alert.hidden = true;
      this.#draw(stats);
    } catch (error) {
      this.#alert.textContent = error.message;
      this.#alert.hidden = false;
    }
    if (this.#timer === turn) this.#timer = setTimeout(() => this.#ask(), EVERY);
  }

  /** Tokens per second since the last look. */
  #speed(stats) {
    const before = this.#before;
    this.#before = stats;
    if (!before || stats.uptime <= before.uptime) return 0;
    return (stats.completion_tokens - before.completion_tokens) / (stats.uptime - before.uptime);
  }

  #draw(stats) {
    const speed = this.#speed(stats);
    this.#speeds = [...this.#speeds, Math.round(speed)].slice(-KEPT);
    this.#numbers.replaceChildren(...headline(stats, speed));
    this.#cards.replaceChildren(
      card("Acceptance by position", "Of the drafts judged at each place of a draft.", positions(stats)),
      card("Draft length chosen", "0 is plain decoding.", lengths(stats)),
      card("Throughput", gain(stats), speeds(stats)),
      card("Now", "Tokens per second in the last minute.", spark(this.#speeds)),
    );
  }
}

export function startLive(panel, server) {
  return new Live(panel, server);
}
