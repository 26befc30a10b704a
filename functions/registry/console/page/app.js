// The console's page: sign-in, the views by URL hash, and the timer that refreshes them.
//
//   #now  #fleet  #rollouts  #models  #tenants  #traces?tenant=…  #cost  #branch  #drills  #audit  #trace/ID  #runbook/MODE
//
// A view is a function of (page, params, argument) that returns { nodes, everyMs, refresh }. `page.fill(part, work)` runs
// the work and shows its error in the part itself, so that a failed part does not affect the others.
import { ask, forgetToken, isInside, keepToken, NotLetIn, Refused } from "./ask.js";
import { audit } from "./audit.js";
import { branch } from "./branch.js";
import { cost } from "./cost.js";
import { put } from "./dom.js";
import { drills } from "./drills.js";
import { fleet } from "./fleet.js";
import { listen } from "./keys.js";
import { models } from "./models.js";
import { now } from "./now.js";
import { rollouts } from "./rollouts.js";
import { runbook } from "./runbook.js";
import { tenants } from "./tenants.js";
import { trace, traces } from "./traces.js";

const VIEWS = { now, fleet, rollouts, models, tenants, traces, cost, branch, drills, audit };
const OTHERS = { trace, runbook };
const BELONGS = { trace: "traces", runbook: "now" };
const AWAY_MS = 5000;
const $ = (id) => document.getElementById(id);

let view = null; // the current view: { name, everyMs, refresh }
let timer = 0;
let turn = 0; // number of the current view: answers for older views are dropped

function show() {
  const inside = isInside();
  $("door").hidden = inside;
  for (const id of ["house", "nav", "leave", "help-open"]) $(id).hidden = !inside;
  if (inside) route();
  else $("token").focus();
}

function route() {
  if (!isInside() || location.hash === "#view") return; // #view is the target of the skip link
  const [path, query = ""] = decodeHash().split("?");
  const [name, argument = ""] = path.split(/\/(.*)/);
  const known = VIEWS[name] || OTHERS[name] ? name : "now";
  const mine = ++turn;
  clearTimeout(timer);
  const page = pageOf(mine);
  const made = (VIEWS[known] || OTHERS[known])(page, new URLSearchParams(query), decodeURIComponent(argument));
  view = { ...made, name: known };
  for (const each of $("nav").children) each.toggleAttribute("aria-current", false);
  const tab = [...$("nav").children].find((each) => each.dataset.view === (BELONGS[known] || known));
  if (tab) { tab.setAttribute("aria-current", "page"); if (tab.parentNode.scrollWidth > tab.parentNode.clientWidth) tab.scrollIntoView({ block: "nearest", inline: "center" }); }
  document.title = `shoal console: ${known}`;
  $("trouble").textContent = "";
  put($("view"), made.nodes);
  refresh();
}

function decodeHash() {
  return location.hash.replace(/^#/, "") || "now";
}

function pageOf(mine) {
  const isCurrent = () => mine === turn && isInside();
  return {
    async ask(path, options) {
      const told = await ask(path, options);
      if (!isCurrent()) throw new Superseded();
      return told;
    },
    go,
    leave,
    refresh,
    about(state) {
      const away = state.bus_connected ? "" : "  (bus unavailable: replicas as last received)";
      $("about").textContent = `epoch ${state.epoch}  ${state.revision.slice(0, 24)}${away}`;
    },
    async fill(part, work) {
      try {
        await work();
        part.trouble.textContent = "";
      } catch (error) {
        if (error instanceof Superseded || !isCurrent()) return;
        if (error instanceof NotLetIn) { leave(error.message); return; }
        if (!(error instanceof Refused)) throw error;
        part.trouble.textContent = error.message;
      }
    },
  };
}

class Superseded extends Error {}

async function refresh() {
  clearTimeout(timer);
  const mine = turn;
  try {
    await view.refresh();
  } finally {
    if (mine === turn && !document.hidden && isInside()) {
      const away = [...document.querySelectorAll(".away")].some((each) => each.textContent);
      const everyMs = view.everyMs || (away ? AWAY_MS : 0); // a view without refresh is retried until it has loaded
      clearTimeout(timer);
      if (everyMs) timer = setTimeout(refresh, everyMs);
    }
  }
}

function go(hash) {
  if (location.hash === `#${hash}`) route();
  else location.hash = hash;
}

// ---- sign-in and sign-out

function enter() {
  const token = $("token").value.trim();
  if (!token) return;
  if (!/^[\x21-\x7e]+$/.test(token)) { $("door-trouble").textContent = "A token has only ASCII letters, digits and signs, and no spaces."; return; }
  keepToken(token);
  $("token").value = "";
  $("door-trouble").textContent = "";
  show();
}

function leave(words) {
  forgetToken();
  turn += 1;
  clearTimeout(timer);
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  put($("view"));
  $("about").textContent = "";
  $("door-trouble").textContent = typeof words === "string" ? words : "";
  show();
}

for (const [at, name] of Object.keys(VIEWS).entries()) {
  const tab = document.createElement("a");
  tab.href = `#${name}`;
  tab.dataset.view = name;
  tab.title = `key ${(at + 1) % 10}`;
  tab.textContent = name[0].toUpperCase() + name.slice(1);
  $("nav").append(tab);
}
$("enter").addEventListener("click", enter);
$("token").addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
$("leave").addEventListener("click", () => leave());
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("view").focus(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && isInside()) refresh(); });
addEventListener("hashchange", route);
listen({ views: Object.keys(VIEWS), go, refresh });
show();
