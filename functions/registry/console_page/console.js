// The console's page: asks /console/state every two seconds and draws the answer.
//
// Law: whatever comes from the fleet goes in as text (textContent), never as markup; tenants choose names and engines
// choose words. The token lives in this tab's sessionStorage only, and goes to our own origin only.
"use strict";

const POLL_MS = 2000;
const TOKEN = "shoal-operator-token";
const $ = (id) => document.getElementById(id);
let timer = 0;
let asked = 0; // polls begun: an answer to an older one is not drawn over a newer
const cards = new Map(); // rollout id -> its card, which stays so that a click never lands on a button that is gone

// ---- asking

class Refused extends Error {}
class NotLetIn extends Refused {}

async function ask(path, options = {}) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(TOKEN)}`, ...options.headers };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, redirect: "error", credentials: "omit", signal: AbortSignal.timeout(15000) });
  } catch {
    throw new Refused("The registry does not answer; what is shown is what it said last.");
  }
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const words = (body.error && body.error.message) || `HTTP ${answer.status}`;
  throw answer.status === 401 || answer.status === 403 ? new NotLetIn(words) : new Refused(words);
}

async function poll() {
  clearTimeout(timer);
  const turn = ++asked;
  try {
    const state = await ask(`console/state?search=${encodeURIComponent($("search").value.trim())}`);
    if (turn !== asked || !sessionStorage.getItem(TOKEN)) return;
    $("trouble").textContent = state.database;
    draw(state);
  } catch (error) {
    if (turn !== asked) return;
    if (error instanceof NotLetIn) return leave(error.message);
    $("trouble").textContent = error.message;
  }
  if (!document.hidden) timer = setTimeout(poll, POLL_MS);
}

// ---- making elements

function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

// A heading that begins with "#" is a column of numbers.
function table(headings, rows) {
  const cellClass = (heading) => (heading.startsWith("#") ? "number" : "");
  const head = el("tr", "", ...headings.map((heading) => el("th", cellClass(heading), heading.replace("#", ""))));
  const body = rows.map((row) => el("tr", "", ...row.map((cell, at) => {
    const made = el("td", cellClass(headings[at]) || (at === 0 ? "name" : ""), cell);
    return made;
  })));
  return el("table", "", el("thead", "", head), el("tbody", "", ...body));
}

const put = (id, ...children) => $(id).replaceChildren(...children);
const count = (value) => Number(value).toLocaleString("en");
const percent = (ratio) => `${Math.round(100 * ratio)} %`;

const when = (unixS) => new Date(1000 * unixS).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });

function amount(value, unit) {
  if (value === null) return "–";
  if (unit === "") return count(value);
  return `${value.toFixed(value >= 100 ? 0 : 1)} ${unit}`;
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

// ---- drawing

function draw(state) {
  $("about").textContent = `epoch ${state.epoch}  ${state.revision.slice(0, 24)}${state.bus_connected ? "" : "  (fleet bus away: replicas as last heard)"}`;
  drawRollouts(state.rollouts);
  put("pools", state.pools.length ? el("div", "pools", ...state.pools.map(poolCard)) : el("p", "quiet", "No replica has spoken yet."));
  drawReplicas(state);
  drawModels(state);
  drawAudit(state.audit);
}

function poolCard(pool) {
  const facts = [
    ["replicas ready", `${pool.ready} of ${pool.replicas}`],
    ["requests running, waiting", `${count(pool.running)}, ${count(pool.waiting)}`],
    ["KV cache in use", percent(pool.kv_usage_ratio)],
  ];
  const tiers = pool.tiers;
  if (tiers) {
    facts.push(["adapter versions", count(tiers.registered)], ["in an engine", count(tiers.in_engine)]);
    facts.push(["on a node’s disk", count(tiers.on_disk)], ["in the store only", count(tiers.in_store)]);
    facts.push(["room for more", count(pool.room)]);
  }
  const list = el("dl", "", ...facts.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));
  const failing = (tiers ? tiers.failing : []).map((each) => el("p", "words bad", `${each.name}: ${each.words}`));
  return el("div", "card", el("h3", pool.ready === pool.replicas ? "" : "warn", pool.name), list, ...failing);
}

const PHASES = { ready: "good", starting: "warn", draining: "warn" };

function drawReplicas(state) {
  if (!state.replicas.length) return put("replicas");
  const rows = state.replicas.map((each) => [
    each.id, el("span", PHASES[each.phase] || "bad", each.reason && each.phase !== "ready" ? `${each.phase}: ${each.reason}` : each.phase),
    count(each.running), count(each.waiting), percent(each.kv_usage_ratio), count(each.adapters), count(each.room), `${each.age_s.toFixed(1)} s`,
  ]);
  const more = state.replicas_total - state.replicas.length;
  put("replicas", table(["replica", "phase", "#running", "#waiting", "#KV", "#adapters", "#room", "#heard"], rows), ...(more > 0 ? [el("p", "quiet", ` and ${count(more)} more`)] : []));
}

function drawModels(state) {
  $("models-title").textContent = `Models (${count(state.models_total)})`;
  const rows = state.models.map((each) => [
    each.id, Object.entries(each.channels).map(([channel, version]) => `${channel} → ${version}`).join(", "),
    count(each.versions), each.type === "base" ? "itself" : each.pool, each.declared_in,
  ]);
  const more = state.models_found - state.models.length;
  put("models", table(["model", "channels", "#versions", "base", "declared in"], rows), ...(more > 0 ? [el("p", "quiet", ` and ${count(more)} more: type a part of the id`)] : []));
}

function drawAudit(entries) {
  const rows = entries.map((each) => [
    when(each.at_unix_s), each.actor, each.action, (each.detail && each.detail.target) || each.subject, each.tenant,
  ]);
  put("audit", rows.length ? table(["#when", "who", "what", "of", "tenant"], rows) : el("p", "quiet", "Nothing was changed through the registry yet."));
}

// ---- rollouts

const STATES = { loading: "", running: "warn", paused: "warn", completed: "good", rolled_back: "bad", superseded: "quiet" };
const MOODS = { good: ["good", "good"], few: ["quiet", "too few yet"], suspected: ["warn", "looks bad"], proven: ["bad", "halts"] };

function drawRollouts(rollouts) {
  const seen = new Set(rollouts.map((each) => each.id));
  for (const [id, card] of cards) if (!seen.has(id)) { card.whole.remove(); cards.delete(id); }
  if (!rollouts.length) return put("rollouts", el("p", "quiet", "None yet."));
  for (const note of $("rollouts").querySelectorAll(":scope > p")) note.remove();
  rollouts.forEach((each, at) => {
    const card = cards.get(each.id) || newCard(each.id);
    if ($("rollouts").children[at] !== card.whole) $("rollouts").insertBefore(card.whole, $("rollouts").children[at] || null);
    card.body.replaceChildren(...rolloutBody(each));
    const actions = each.actions.join();
    if (card.actions !== actions) {
      card.actions = actions;
      card.buttons.replaceChildren(...each.actions.map((verb) => actionButton(each, verb)));
    }
  });
}

function newCard(id) {
  const body = el("div"), buttons = el("div", "row");
  const card = { whole: el("article", "card", body, buttons), body, buttons, actions: "" };
  cards.set(id, card);
  return card;
}

function rolloutBody(it) {
  const head = el("div", "row", el("h3", "", `${it.model}:${it.channel}  ${it.from_version} → ${it.to_version}`),
    el("span", `tag ${STATES[it.state] || ""}`, it.state.replace("_", " ")), el("span", "quiet mono", it.id), it.attempt > 1 ? el("span", "quiet", `attempt ${it.attempt}`) : null);
  if (!it.active) return [head, el("p", "words quiet", it.why)];
  const parts = [head, el("ol", "stages", ...it.stages.map((share, at) => el("li", stageClass(it, at), `${share} %`)))];
  if (it.duration_s !== null && it.percent) {
    const bar = el("progress");
    bar.max = it.duration_s || 1;
    bar.value = Math.min(it.in_stage_s, bar.max);
    parts.push(el("div", "row", bar, el("span", "quiet", `${seconds(it.in_stage_s)} of ${seconds(it.duration_s)}`)));
  }
  if (it.why) parts.push(el("p", "words", it.why));
  if (it.percent && (it.heard_age_s === null || it.heard_age_s > 15)) {
    parts.push(el("p", "words warn", it.heard_age_s === null ? "No gateway has told of this stage yet." : `Gateways silent for ${seconds(it.heard_age_s)}.`));
  }
  if (!it.percent) return [...parts, el("p", "words quiet", `${it.to_version} is being loaded for ${seconds(it.in_stage_s)}; nobody gets it yet.`)];
  return [...parts, el("div", "figures", scroll(groups(it)), it.conditions.length ? scroll(conditions(it)) : null)];
}

const scroll = (inner) => el("div", "scroll", inner);

function stageClass(it, at) {
  if (at < it.stage) return "past";
  return at === it.stage && it.percent ? "now" : "";
}

function groups(it) {
  const rows = it.rows.map((row) => [row.name, amount(row.control, row.unit), amount(row.candidate, row.unit),
    row.factor === null ? "" : el("span", row.factor >= 1.25 ? "bad" : "quiet", `${row.factor.toFixed(2)}×`)]);
  return table(["", `#control ${it.from_version}`, `#candidate ${it.to_version}`, "#"], rows);
}

function conditions(it) {
  const rows = it.conditions.map((each) => {
    const [mood, words] = MOODS[each.mood] || ["", each.mood];
    return [el("code", "", each.text), el("span", mood, words), el("span", "quiet", each.figures)];
  });
  return table(["halts when", "", ""], rows);
}

const VERBS = {
  pause: ["Pause", "It stays at this share until somebody resumes it. Its conditions stay on duty."],
  resume: ["Resume", "It goes on; one that was rolled back begins again with its first stage."],
  promote: ["Promote", "All of the channel’s traffic goes to the new version now, whatever the stages say."],
  rollback: ["Roll back", "All of the channel’s traffic goes back to the old version now."],
};

function actionButton(it, verb) {
  const button = el("button", verb === "rollback" ? "danger" : "", VERBS[verb][0]);
  button.type = "button";
  button.addEventListener("click", () => sure(it, verb));
  return button;
}

// ---- being sure

let confirmed = () => {};

function sure(it, verb) {
  const [label, words] = VERBS[verb];
  $("sure-title").textContent = `${label} ${it.model}:${it.channel}, ${it.from_version} → ${it.to_version}?`;
  $("sure-words").textContent = words;
  $("sure-yes").textContent = label;
  $("sure-why").value = "";
  $("sure-why-label").hidden = verb !== "rollback";
  confirmed = () => act(it.id, verb, $("sure-why").value.trim());
  $("sure").showModal();
}

async function act(id, verb, reason) {
  $("sure").close();
  const body = JSON.stringify(reason ? { reason } : {});
  try {
    await ask(`v1/rollouts/${encodeURIComponent(id)}/${verb}`, { method: "POST", body, headers: { "content-type": "application/json" } });
  } catch (error) {
    if (error instanceof NotLetIn) return leave(error.message);
    $("trouble").textContent = error.message;
    timer = setTimeout(poll, POLL_MS);
    return;
  }
  poll();
}

// ---- coming and going

function enter() {
  const token = $("token").value.trim();
  if (!token) return;
  if (!/^[\x21-\x7e]+$/.test(token)) { $("door-trouble").textContent = "A token has no spaces and no special letters."; return; }
  sessionStorage.setItem(TOKEN, token);
  $("token").value = "";
  show();
}

function leave(words) {
  sessionStorage.removeItem(TOKEN);
  asked += 1;
  clearTimeout(timer);
  $("sure").close();
  cards.clear();
  for (const id of ["rollouts", "pools", "replicas", "models", "audit"]) put(id);
  $("about").textContent = "";
  $("door-trouble").textContent = typeof words === "string" ? words : "";
  show();
}

function show() {
  const inside = sessionStorage.getItem(TOKEN) !== null;
  $("door").hidden = inside;
  $("house").hidden = !inside;
  $("leave").hidden = !inside;
  if (inside) poll();
  else $("token").focus();
}

$("enter").addEventListener("click", enter);
$("token").addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
$("leave").addEventListener("click", () => leave());
$("search").addEventListener("input", () => poll());
$("sure-no").addEventListener("click", () => $("sure").close());
$("sure-yes").addEventListener("click", () => confirmed());
document.addEventListener("visibilitychange", () => { if (!document.hidden && sessionStorage.getItem(TOKEN)) poll(); });
show();
