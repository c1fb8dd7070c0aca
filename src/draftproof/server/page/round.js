// Figure 2: one round of the engine, step by step, in three outcomes.

import { button, calm, choice, el, plural } from "./dom.js";

const PAUSE = 1300;
const quoted = (word) => `“${word}”`;

/** The steps of a round: how much is drafted, read and judged at each, and what is said. */
function steps(found, outcome) {
  const { prefix, draft } = found;
  const k = draft.length;
  const all = [
    {
      drafted: 0,
      text: `Committed so far: ${plural(prefix.length, "token")}. The draft length is ${k}.`,
    },
  ];
  draft.forEach((word, at) =>
    all.push({ drafted: at + 1, text: `The drafter proposes ${quoted(word)}.` }),
  );
  all.push({
    drafted: k,
    read: true,
    text: `One pass of the target scores all ${k} drafts: ${k + 1} distributions at once.`,
  });
  outcome.checks.forEach((check, at) => {
    if (check.verdict === "unread") return;
    all.push({ drafted: k, read: true, judged: at + 1, text: said(check, k) });
  });
  all.push({ drafted: k, read: true, judged: k + 1, done: true, text: summed(outcome) });
  return all;
}

function said(check, k) {
  if (check.verdict === "bonus") {
    return `All ${k} drafts are accepted, so the last distribution adds a bonus: ${quoted(check.drawn)}.`;
  }
  if (check.verdict === "accepted") {
    return `The target draws ${quoted(check.drawn)} too: accepted.`;
  }
  return `The target draws ${quoted(check.drawn)}, not ${quoted(check.draft)}: rejected. Its own token is the correction.`;
}

function summed(outcome) {
  const tokens = plural(outcome.committed.length, "token");
  const gone = outcome.discarded.length
    ? ` ${plural(outcome.discarded.length, "draft")} behind it ${outcome.discarded.length === 1 ? "is" : "are"} discarded, and the cache is rolled back to ${outcome.cached} entries.`
    : ` The cache holds ${outcome.cached} entries: all but the newest token.`;
  return `One pass, ${tokens} committed: ${outcome.accepted} accepted and one ${outcome.origin}.${gone}`;
}

const VERDICTS = { accepted: "✓ accepted", correction: "✗ rejected", bonus: "+ bonus" };

function row(check, at, step) {
  const judged = at < (step.judged ?? 0) && check.verdict !== "unread";
  const bars = check.top.map(({ word, p }) =>
    el(
      "span",
      { class: `mini${judged && word === check.drawn ? " drawn" : ""}` },
      el("span", { class: "mini-word" }, word),
      el("i", { style: { "--p": p } }),
      el("span", { class: "mini-p" }, p.toFixed(2)),
    ),
  );
  const verdict = judged ? VERDICTS[check.verdict] : step.done ? "not read" : "";
  return el(
    "li",
    { class: `check ${judged ? check.verdict : step.done ? "unread" : "waiting"}` },
    el("span", { class: "check-draft" }, check.draft ?? "next"),
    el("span", { class: "check-top" }, bars),
    el("span", { class: "check-verdict" }, verdict),
  );
}

/** The text as it stands: committed, drafted, and what became of the draft. */
function line(found, outcome, step) {
  const parts = found.prefix.map((word) => el("span", { class: "token committed" }, word));
  const judged = step.judged ?? 0;
  found.draft.slice(0, step.drafted).forEach((word, at) => {
    const verdict = outcome.checks[at].verdict;
    if (at < judged && verdict === "accepted") {
      parts.push(el("span", { class: "token accepted" }, word));
    } else if (at < judged && verdict === "correction") {
      parts.push(el("del", { class: "token rejected" }, word));
      parts.push(el("span", { class: "token correction" }, outcome.added));
    } else if (!step.done) {
      parts.push(el("span", { class: `token drafted${judged > outcome.accepted ? " ahead" : ""}` }, word));
    }
  });
  if (judged > found.draft.length && outcome.origin === "bonus") {
    parts.push(el("span", { class: "token bonus" }, outcome.added));
  }
  return parts.flatMap((part) => [part, " "]);
}

export function round(stage, found) {
  const k = found.draft.length;
  const kinds = [
    ["first", "First mismatch", 0],
    ["middle", "Middle mismatch", k / 2],
    ["all", "All accepted + bonus", k],
  ];
  let outcome = null;
  let all = [];
  let at = 0;
  let timer = 0;
  const text = el("p", { class: "words big" });
  const list = el("ol", { class: "checks-list" });
  const head = el(
    "p",
    { class: "note checks-head" },
    "Each draft, the most probable tokens of the target’s distribution there, and what it draws.",
  );
  const caption = el("p", { class: "caption", "aria-live": "polite" });
  const place = el("span", { class: "place" });

  const choose = (kind) => {
    const accepted = kinds.find(([name]) => name === kind)[2];
    outcome = found.outcomes[accepted];
    all = steps(found, outcome);
    stop();
    go(0);
  };
  const outcomes = choice("Outcome", kinds, "middle", choose);

  function go(next) {
    at = Math.max(0, Math.min(next, all.length - 1));
    const step = all[at];
    text.replaceChildren(...line(found, outcome, step));
    list.replaceChildren(...(step.read ? outcome.checks.map((c, i) => row(c, i, step)) : []));
    head.hidden = !step.read;
    caption.textContent = step.text;
    place.textContent = `${at + 1} / ${all.length}`;
    back.disabled = at === 0;
    forward.disabled = at === all.length - 1;
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }

  const play = button("Play", () => {
    if (timer) return stop();
    if (at === all.length - 1) go(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      go(at + 1);
      if (at === all.length - 1) stop();
    }, calm() ? 2 * PAUSE : PAUSE);
    return null;
  });
  const moved = (by) => () => {
    stop();
    go(at + by);
  };
  const back = button("Back", moved(-1));
  const forward = button("Step", moved(1), { class: "primary" });

  stage.append(
    outcomes.node,
    el("div", { class: "theatre" }, text, caption, head, list),
    el("div", { class: "bar" }, play, forward, back, place),
  );
  choose("middle");
  go(all.length - 1);
}
