// One answer as it comes in: its tokens with their origins, its numbers, its timeline.

import { el, percent, plural } from "./dom.js";
import { rejected, token } from "./origins.js";
import { Timeline } from "./timeline.js";

export class Answer {
  text = "";
  stats = null;
  finish = null;
  rounds = 0;
  #accepted = 0;
  #evaluated = 0;
  #emitted = 0;
  #started = performance.now();
  #body = el("div", { class: "answer-text" });
  #numbers = el("p", { class: "answer-numbers" });
  #seed;
  #timeline;
  node;

  /** `name` and `request` say whose rounds these are. */
  constructor(name, request) {
    this.#seed = request.temperature ? request.seed : null;
    this.#timeline = new Timeline(`Rounds of ${name}`);
    const detail = el("details", { open: true }, el("summary", {}, "Rounds: tokens above the line, time below"), this.#timeline.node);
    detail.hidden = true;
    this.detail = detail;
    this.node = el("div", { class: "answer running" }, this.#body, this.#numbers, detail);
  }

  /** Take in one chunk of the stream. */
  add(chunk) {
    const first = chunk.choices?.[0];
    this.text += first?.delta?.content ?? "";
    this.finish = first?.finish_reason ?? this.finish;
    const round = chunk.draftproof;
    if (round?.stats) this.stats = round.stats;
    else if (round?.pieces) this.#round(round);
    else if (first?.delta?.content) this.#body.append(...token(first.delta.content, "plain"));
  }

  #round(round) {
    const lost = round.rejected ? rejected(round.rejected) : null;
    const parts = round.pieces.map((piece) => token(piece.text, piece.origin));
    const fell = round.pieces.findIndex((piece) => piece.origin === "correction");
    if (lost) parts.splice(fell < 0 ? parts.length : fell, 0, lost);
    this.#body.append(...parts.flat());
    if (!round.drafted && !round.pieces.length) return;
    this.rounds += 1;
    this.#accepted += round.accepted;
    this.#evaluated += round.evaluated;
    this.#emitted += Math.max(round.accepted + 1, round.pieces.length);
    this.#timeline.add(round);
    this.detail.hidden = false;
    this.#tell(this.#running());
  }

  #running() {
    return {
      acceptance_rate: this.#evaluated ? this.#accepted / this.#evaluated : null,
      acceptance_length: this.#emitted / this.rounds,
      tokens_per_second: (1000 * this.#emitted) / (performance.now() - this.#started),
      rounds: this.rounds,
      completion_tokens: this.#emitted,
    };
  }

  #tell(stats) {
    const { acceptance_rate: rate, acceptance_length: length, tokens_per_second: speed } = stats;
    const parts = [
      [length === null ? "–" : length.toFixed(2), "tokens per pass"],
      [rate === null ? "–" : percent(rate), "of drafts accepted"],
      [speed.toFixed(1), "tokens/s"],
      [stats.completion_tokens, `tokens in ${plural(stats.rounds, "pass", "passes")}`],
    ];
    this.#numbers.replaceChildren(
      ...parts.map(([value, name]) => el("span", {}, el("b", {}, value), ` ${name}`)),
      this.#seed === null ? "" : el("span", {}, "seed ", el("b", {}, this.#seed)),
    );
  }

  /** The stream is over; `note` says why where it was not the model's own end. */
  end(note = "") {
    this.node.classList.remove("running");
    if (this.stats) this.#tell(this.stats);
    if (this.finish === "length") note ||= "The answer ends at the limit of tokens.";
    if (note) this.#numbers.after(el("p", { class: "answer-note" }, note));
  }

  /** One sentence for those who do not see it. */
  summary() {
    const found = this.stats ?? (this.rounds ? this.#running() : null);
    if (!found) return "No answer.";
    return `Answer finished: ${plural(found.completion_tokens, "token")} in ${plural(found.rounds, "pass", "passes")}.`;
  }
}
