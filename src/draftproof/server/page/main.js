// The tabs, and which parts there are: a server without a model has the figures alone.

import { startChat } from "./chat.js";
import { checks } from "./checks.js";
import { correction } from "./correction.js";
import { failing, numbers } from "./dom.js";
import { startLive } from "./live.js";
import { round } from "./round.js";
import { schedule } from "./schedule.js";
import { speedup } from "./speedup.js";
import { verification } from "./verification.js";

const NAMES = ["chat", "how", "live"];
const tabs = NAMES.map((name) => document.getElementById(`tab-${name}`));
const panels = NAMES.map((name) => document.getElementById(name));

function show(name, focus = false) {
  NAMES.forEach((each, at) => {
    const chosen = each === name;
    tabs[at].setAttribute("aria-selected", chosen);
    tabs[at].tabIndex = chosen ? 0 : -1;
    panels[at].hidden = !chosen;
    if (chosen && focus) tabs[at].focus();
  });
  document.dispatchEvent(new CustomEvent("shown", { detail: name }));
}

/** Which part an address asks for; the figures' own anchors lie in the second. */
function asked() {
  const name = location.hash.slice(1);
  if (NAMES.includes(name)) return name;
  return name.startsWith("fig-") ? "how" : "chat";
}

function press(event) {
  const at = tabs.indexOf(event.target);
  const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: NAMES.length - 1 };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const name = NAMES[(steps[event.key] + NAMES.length) % NAMES.length];
  history.replaceState(null, "", `#${name}`);
  show(name, true);
}

function startTabs() {
  const list = document.querySelector(".tabs");
  list.hidden = false;
  panels.forEach((panel, at) => {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tabs[at].id);
  });
  list.addEventListener("keydown", press);
  tabs.forEach((tab, at) =>
    tab.addEventListener("click", () => {
      history.replaceState(null, "", `#${NAMES[at]}`);
      show(NAMES[at]);
      scrollTo(0, 0);
    }),
  );
  addEventListener("hashchange", () => {
    show(asked());
    document.getElementById(location.hash.slice(1))?.scrollIntoView();
  });
  show(asked());
}

async function figure(name, draw, source) {
  const stage = document.querySelector(`#fig-${name} .stage`);
  try {
    await draw(stage, source && (await source));
  } catch (error) {
    failing(stage)(error);
  }
}

async function startFigures() {
  const rounds = numbers("rounds");
  await Promise.all([
    figure("schedule", schedule),
    figure("round", round, rounds),
    figure("checks", checks, rounds),
    figure("correction", correction, numbers("correction")),
    figure("speedup", speedup),
    figure("verification", verification),
  ]);
  document.documentElement.dataset.figures = "ready";
  if (location.hash.startsWith("#fig-")) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

/** What the server serves; null where it has the figures alone. */
async function served() {
  const answer = await fetch("stats");
  return answer.status === 200 ? answer.json() : null;
}

async function start() {
  const stats = await served().catch(() => null);
  if (stats !== null) {
    const server = startChat(document.getElementById("chat"), stats);
    startLive(document.getElementById("live"), server);
    startTabs();
  }
  await startFigures();
}

start();
