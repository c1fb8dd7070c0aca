// Figure 6: token and block verification of the same draft.

import { choice, el, failing, latest, numbers, percent, slider } from "./dom.js";

const PARTS = 60; // of the slider: two thirds and one third are among them

/** How many drafts are accepted: a bar for each length. */
function lengths(name, judged) {
  const bars = judged.lengths.map((chance, length) =>
    el(
      "li",
      {},
      el("span", { class: "length-name" }, length),
      el("span", { class: "mass" }, el("i", { class: "accepted", style: { "--p": chance } })),
      el("span", { class: "length-chance" }, percent(chance)),
    ),
  );
  return el(
    "div",
    { class: "rule-card" },
    el("h3", {}, `${name} rule`),
    el("ol", { class: "lengths", "aria-label": "Accepted drafts and their chance" }, bars),
    el("p", { class: "mean" }, el("strong", {}, judged.mean.toFixed(2)), " accepted on average"),
  );
}

function coins(found, draft) {
  const two = (x) => x.toFixed(2);
  const at = [...draft.draft].map((letter) => (letter === "a" ? 0 : 1));
  const line = (name, values) =>
    el("tr", {}, el("th", { scope: "row" }, name), ...values.map((x) => el("td", {}, x)));
  return el(
    "table",
    { class: "coins" },
    el("thead", {}, line("draft x", [...draft.draft])),
    el(
      "tbody",
      {},
      line("target p(x)", at.map((i) => two(found.p[i]))),
      line("draft q(x)", at.map((i) => two(found.q[i]))),
      line("token: coin", draft.token.coins.map(two)),
      line("block: P kept", draft.kept.map(two)),
      line("block: coin", draft.block.coins.map(two)),
    ),
  );
}

export function verification(stage) {
  let found = null;
  let chosen = "ab";
  const picker = el("div");
  const cards = el("div", { class: "cards" });
  const table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Coins" });
  const result = el("p", { class: "result", "aria-live": "polite" });
  const ask = latest(async () => {
    found = await numbers("verification", {
      mass: mass.value / PARTS,
      draft_length: length.value,
    });
    pick();
    draw();
  }, failing(stage));
  const mass = slider(
    {
      label: "The draft’s mass on a",
      min: 1,
      max: PARTS - 1,
      step: 1,
      value: 40,
      show: (n) => `${(n / PARTS).toFixed(2)} (target ${(1 / 3).toFixed(2)})`,
    },
    ask,
  );
  const length = slider({ label: "Draft length k", min: 1, max: 4, step: 1, value: 2 }, ask);

  /** The drafts there are; the picker is only made anew when they change, to keep the focus. */
  function pick() {
    const names = found.drafts.map((draft) => draft.draft);
    if (picker.dataset.names === names.join()) return;
    picker.dataset.names = names.join();
    if (!names.includes(chosen)) chosen = names.find((name) => name.startsWith("ab")) ?? names[0];
    const options = names.map((name) => [name, name]);
    picker.replaceChildren(
      choice("The draft", options, chosen, (name) => {
        chosen = name;
        draw();
      }).node,
    );
  }

  function draw() {
    const draft = found.drafts.find((one) => one.draft === chosen);
    cards.replaceChildren(lengths("token", draft.token), lengths("block", draft.block));
    table.replaceChildren(coins(found, draft));
    const { token, block } = found.mean;
    const gain = token ? block / token - 1 : 0;
    result.replaceChildren(
      "Over all drafts: token ",
      el("strong", { class: "mean-token" }, token.toFixed(3)),
      ", block ",
      el("strong", { class: "mean-block" }, block.toFixed(3)),
      ` accepted on average${gain > 5e-4 ? `, ${percent(gain, 1)} more` : ""}.`,
    );
  }

  stage.append(
    el("div", { class: "controls" }, mass.node, length.node),
    picker,
    cards,
    table,
    result,
  );
  return ask();
}
