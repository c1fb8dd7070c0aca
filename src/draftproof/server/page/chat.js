// The chat: a conversation with the served model, and what it takes to send a message.

import { Answer } from "./answer.js";
import { button, el } from "./dom.js";
import { replay } from "./replay.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";

const IDEAS = [
  "Correct the spelling and repeat: The quick brown fox jumpd over the lasy dog. The dog was not " +
    "amused, and the fox was very hapy. It jumpd over the dog agian.",
  "List the planets of the solar system, each with one short fact.",
  "Write a Python function that returns the n-th Fibonacci number, and explain it.",
];

const FULL = "context_length_exceeded"; // the server's word for it

class Chat {
  #server = new Server();
  #model;
  #messages = [];
  #last = null; // the newest finished answer, with the request that made it
  #running = null; // the AbortController of what streams
  #settings = new Settings(this.#server, {
    rejectedShown: (on) => this.#log.classList.toggle("without-rejected", !on),
    replayed: (on) => on && this.#replay(),
  });
  #log = el("div", { class: "log", role: "log", "aria-label": "Conversation", "aria-live": "off" });
  #status = el("p", { class: "hidden", role: "status" });
  #alert = el("p", { class: "notice", role: "alert", hidden: true });
  #input = el("textarea", {
    id: "message",
    rows: 2,
    placeholder: "Ask the model something",
    "aria-describedby": "message-hint",
  });
  #send = el("button", { type: "submit", class: "primary" }, "Send");
  #stop = button("Stop", () => this.#running?.abort(), { hidden: true, class: "stop" });
  #fresh = button("New chat", () => this.#clear());
  #ideas = this.#suggest();

  constructor(panel, stats) {
    this.#model = stats.model;
    const form = el(
      "form",
      { class: "composer" },
      el("label", { for: "message", class: "hidden" }, "Message"),
      this.#input,
      el(
        "div",
        { class: "bar" },
        this.#send,
        this.#stop,
        this.#fresh,
        el("small", { id: "message-hint" }, "Enter sends, Shift + Enter begins a line, Esc stops"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(this.#input.value);
    });
    this.#input.addEventListener("keydown", (event) => this.#press(event, form));
    panel.append(
      el("h1", { class: "hidden" }, "Chat"),
      el(
        "div",
        { class: "talk" },
        this.#title(stats),
        this.#log,
        this.#ideas,
        this.#alert,
        this.#status,
        form,
      ),
      this.#settings.node,
    );
    panel.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#running?.abort();
    });
  }

  get server() {
    return this.#server;
  }

  #title({ model, drafter }) {
    const second = drafter && drafter !== "none" ? ["drafted by ", el("b", {}, drafter)] : "no drafter";
    return el("p", { class: "pair" }, el("b", {}, model), el("span", {}, second));
  }

  #suggest() {
    const ask = (text) => button(text, () => this.#submit(text));
    return el(
      "div",
      { class: "ideas", "aria-label": "Suggestions", role: "group" },
      el("p", {}, "Every token shows where it came from. Ask something, or begin with one of these:"),
      ...IDEAS.map(ask),
    );
  }

  #press(event, form) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  }

  #clear() {
    this.#running?.abort();
    this.#messages = [];
    this.#last = null;
    this.#log.replaceChildren();
    this.#complain("");
    this.#ideas.hidden = false;
    this.#input.focus();
  }

  async #submit(text) {
    if (!text.trim() || this.#running || !this.#settings.valid()) return;
    this.#input.value = "";
    this.#ideas.hidden = true;
    this.#messages.push({ role: "user", content: text });
    this.#log.append(el("p", { class: "asked" }, text));
    for (const older of this.#log.querySelectorAll("details")) older.open = false;
    await this.#answer(text);
  }

  async #answer(asked) {
    const messages = this.#messages;
    const request = { model: this.#model, ...this.#settings.request([...messages]) };
    const answer = new Answer("this answer", request);
    this.#log.append(answer.node);
    this.#last = null;
    const done = await this.#while(async (signal) => {
      for await (const chunk of this.#server.stream(request, signal)) this.#grow(answer, chunk);
    });
    answer.end({ stopped: "Stopped.", failed: "This answer is incomplete." }[done]);
    this.#status.textContent = done === "failed" ? "" : answer.summary();
    if (messages !== this.#messages) return; // a new chat has begun
    if (done === "finished" || (done === "stopped" && answer.text)) {
      messages.push({ role: "assistant", content: answer.text });
    } else {
      this.#takeBack(answer, asked);
    }
    if (done === "finished") this.#last = { request, answer };
    if (this.#settings.replays) await this.#replay();
  }

  /** No answer: the question goes back to where it was written; a part of an answer stays in sight. */
  #takeBack(answer, asked) {
    if (!answer.text) {
      answer.node.remove();
      this.#log.lastElementChild?.remove();
    }
    this.#messages.pop();
    this.#input.value ||= asked;
    this.#ideas.hidden = this.#log.childElementCount > 0;
  }

  #grow(answer, chunk) {
    const near = innerHeight + scrollY >= document.documentElement.scrollHeight - 120;
    answer.add(chunk);
    if (near) scrollTo(0, document.documentElement.scrollHeight);
  }

  async #replay() {
    if (!this.#last || this.#running) return;
    const { request, answer } = this.#last;
    await this.#while((signal) => replay(this.#server, request, answer, signal));
  }

  /** Runs what may be stopped: "finished", "stopped" or "failed". */
  async #while(work) {
    this.#complain("");
    this.#running = new AbortController();
    this.#busy(true);
    try {
      await work(this.#running.signal);
      return "finished";
    } catch (error) {
      if (error.name === "AbortError") return "stopped";
      if (error.code === FULL && this.#messages.length > 1) {
        const fresh = button("New chat", () => this.#clear());
        this.#complain("The conversation is full: the model cannot read more. ", fresh);
      } else this.#complain(error.message);
      if (error.status === 401) this.#settings.askKey();
      return "failed";
    } finally {
      this.#running = null;
      this.#busy(false);
    }
  }

  #busy(on) {
    const held = document.activeElement === this.#stop;
    this.#stop.hidden = !on;
    this.#send.hidden = on;
    if (held && !on) this.#input.focus();
  }

  #complain(message, ...more) {
    this.#alert.replaceChildren(message, ...more);
    this.#alert.hidden = !message;
  }
}

/** Fills the panel; returns the server it talks to. */
export function startChat(panel, stats) {
  return new Chat(panel, stats).server;
}
