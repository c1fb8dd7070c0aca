// The settings beside the chat, and the request they make.

import { el, id } from "./dom.js";
import { legend } from "./origins.js";

function field(label, hint, attributes) {
  const name = id("field");
  const input = el("input", { id: name, ...attributes });
  const about = el("small", { id: `${name}-hint` }, hint);
  input.setAttribute("aria-describedby", about.id);
  return { input, node: el("div", { class: "field" }, el("label", { for: name }, label), input, about) };
}

const number = (label, hint, min, max, step, value) =>
  field(label, hint, { type: "number", min, max, step, value, inputmode: "decimal" });

function toggle(label, checked, change) {
  const input = el("input", { type: "checkbox", role: "switch", checked });
  input.addEventListener("change", () => change(input.checked));
  return { input, node: el("label", { class: "toggle" }, input, el("span", {}, label)) };
}

export class Settings {
  #temperature = number("Temperature", "0 is greedy", 0, 2, 0.1, 0.7);
  #seed = number("Seed", "empty: a new one each time", 0, 2 ** 31 - 1, 1, "");
  #tokens = number("Most tokens", "of an answer", 1, 100000, 1, 256);
  #length = number("Draft length", "empty: the server’s choice", 0, 64, 1, "");
  #key = field("API key", "kept for this page only", { type: "password", autocomplete: "off" });
  #replay;
  node;

  constructor(server, { rejectedShown, replayed }) {
    this.#replay = toggle("Replay without speculation", false, replayed);
    const shown = toggle("Show rejected drafts", true, rejectedShown);
    this.#key.node.hidden = true;
    this.#key.input.addEventListener("input", () => (server.key = this.#key.input.value.trim()));
    const onsubmit = (event) => event.preventDefault();
    const fields = [this.#key, this.#temperature, this.#seed, this.#tokens, this.#length];
    this.node = el(
      "aside",
      { class: "settings", "aria-label": "Settings" },
      el(
        "details",
        { open: matchMedia("(min-width: 52rem)").matches },
        el("summary", {}, "Settings and legend"),
        el("form", { class: "fields", onsubmit }, ...fields.map(({ node }) => node)),
        legend(),
      ),
      el("div", { class: "toggles" }, this.#replay.node, shown.node),
    );
  }

  get replays() {
    return this.#replay.input.checked;
  }

  /** The server wants a key: ask for it. */
  askKey() {
    this.#key.node.hidden = false;
    this.node.querySelector("details").open = true;
    this.#key.input.focus();
  }

  /** Whether all fields make sense; the browser says what does not. */
  valid() {
    const every = [this.#temperature, this.#seed, this.#tokens, this.#length];
    const wrong = every.find(({ input }) => !input.checkValidity());
    if (wrong) this.node.querySelector("details").open = true;
    wrong?.input.reportValidity();
    return !wrong;
  }

  /** The body of a request. There is always a seed, so that the answer can be replayed. */
  request(messages) {
    const given = ({ input }) => (input.value === "" ? null : Number(input.value));
    const body = {
      messages,
      temperature: given(this.#temperature) ?? 0,
      seed: given(this.#seed) ?? Math.floor(Math.random() * 1e6),
    };
    const [tokens, length] = [given(this.#tokens), given(this.#length)];
    if (tokens !== null) body.max_tokens = tokens;
    if (length !== null) body.num_draft_tokens = length;
    return body;
  }
}
