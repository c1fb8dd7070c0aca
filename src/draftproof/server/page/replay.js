// An answer again, without speculation: whether the text is the same, and what was saved.

import { Answer } from "./answer.js";
import { el, percent, plural } from "./dom.js";

/** Runs the replay under an answer. Throws what the stream throws. */
export async function replay(server, request, answer, signal) {
  const plain = new Answer("the replay without speculation", request);
  const verdict = el("p", { class: "verdict", role: "status" }, "Replaying without speculation …");
  answer.node.querySelector(".replay")?.remove();
  answer.node.append(
    el("section", { class: "replay", "aria-label": "Without speculation" }, verdict, plain.node),
  );
  plain.detail.open = false;
  try {
    for await (const chunk of server.stream({ ...request, speculation: false }, signal)) {
      plain.add(chunk);
    }
  } catch (error) {
    plain.end();
    const stopped = error.name === "AbortError";
    verdict.textContent = stopped ? "The replay was stopped." : error.message;
    return;
  }
  plain.end();
  verdict.replaceChildren(...compare(answer, plain));
  verdict.classList.add(answer.text === plain.text ? "same" : "other");
}

function compare(answer, plain) {
  if (answer.text !== plain.text) return [parted(answer.text, plain.text)];
  const same = `The same text without speculation, all ${plural(plain.text.length, "character")}.`;
  return [el("strong", {}, same), " ", saved(answer.stats, plain.stats)];
}

/** By decoding alone: the replay finds the prompt in the cache. */
function saved(stats, plain) {
  if (!stats || !plain) return "";
  const passes = `${plural(stats.rounds, "pass", "passes")} instead of ${plain.rounds}`;
  const [mine, theirs] = [stats.tokens_per_second, plain.tokens_per_second];
  const speeds = `${mine.toFixed(1)} tokens/s instead of ${theirs.toFixed(1)}`;
  const saved = 1 - theirs / mine;
  const worth = saved >= 0 ? `${percent(saved)} of the time saved` : "speculation did not pay here";
  return `${passes}, ${speeds}: ${worth}.`;
}

/** Where two texts part, kindly. */
function parted(mine, theirs) {
  let at = 0;
  while (at < Math.min(mine.length, theirs.length) && mine[at] === theirs[at]) at += 1;
  const some = (text) => `“${text.slice(at, at + 24) || "its end"}”`;
  return (
    `The texts part at character ${at + 1}: ${some(mine)} with speculation, ${some(theirs)} ` +
    "without. A pass over several tokens rounds differently from several passes over one, so two " +
    "tokens that are all but tied can swap."
  );
}
