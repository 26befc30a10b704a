// Rollouts: progress, halt conditions, and the commands that an operator may give.
//
// A card stays in the page while its rollout is shown, so that a click never hits a button that was replaced.
import { ask, NotLetIn } from "./ask.js";
import { count, el, empty, part, put } from "./dom.js";

const $ = (id) => document.getElementById(id);
const cards = new Map(); // rollout id -> its card

export function rollouts(page) {
  const here = part("Rollouts"), list = el("div");
  here.body.append(list);
  cards.clear();
  act.page = page;
  return {
    nodes: [here.whole],
    everyMs: 2000,
    refresh: () => page.fill(here, async () => {
      const state = await page.ask("console/state");
      page.about(state);
      here.trouble.textContent = state.database;
      drawRollouts(list, state.rollouts);
    }),
  };
}

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

const STATES = { loading: "", running: "warn", paused: "warn", completed: "good", rolled_back: "bad", superseded: "quiet" };
const MOODS = { good: ["good", "good"], few: ["quiet", "not enough data"], suspected: ["warn", "looks bad"], proven: ["bad", "halts"] };

function drawRollouts(list, rollouts) {
  const seen = new Set(rollouts.map((each) => each.id));
  for (const [id, card] of cards) if (!seen.has(id)) { card.whole.remove(); cards.delete(id); }
  if (!rollouts.length) return put(list, empty("No rollouts yet."));
  for (const note of list.querySelectorAll(":scope > p")) note.remove();
  rollouts.forEach((each, at) => {
    const card = cards.get(each.id) || newCard(each.id);
    if (list.children[at] !== card.whole) list.insertBefore(card.whole, list.children[at] || null);
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
    parts.push(el("p", "words warn", it.heard_age_s === null ? "No gateway has reported on this stage yet." : `No gateway has reported for ${seconds(it.heard_age_s)}.`));
  }
  if (!it.percent) return [...parts, el("p", "words quiet", `${it.to_version} has been loading for ${seconds(it.in_stage_s)} and gets no traffic yet.`)];
  return [...parts, el("div", "figures", scroll(groups(it)), it.conditions.length ? scroll(conditions(it)) : null)];
}

function plainTable(headings, rows) {
  const cellClass = (heading) => (heading.startsWith("#") ? "number" : "");
  const head = el("tr", "", headings.map((heading) => { const made = el("th", cellClass(heading), heading.replace("#", "")); made.scope = "col"; return made; }));
  return el("table", "", el("thead", "", head), el("tbody", "", rows.map((row) => el("tr", "", row.map((cell, at) => el("td", cellClass(headings[at]), cell))))));
}

const scroll = (inner) => el("div", "scroll", inner);

function stageClass(it, at) {
  if (at < it.stage) return "past";
  return at === it.stage && it.percent ? "now" : "";
}

function groups(it) {
  const rows = it.rows.map((row) => [row.name, amount(row.control, row.unit), amount(row.candidate, row.unit),
    row.factor === null ? "" : el("span", row.factor >= 1.25 ? "bad" : "quiet", `${row.factor.toFixed(2)}×`)]);
  return plainTable(["", `#control ${it.from_version}`, `#candidate ${it.to_version}`, "#"], rows);
}

function conditions(it) {
  const rows = it.conditions.map((each) => {
    const [mood, words] = MOODS[each.mood] || ["", each.mood];
    return [el("code", "", each.text), el("span", mood, words), el("span", "quiet", each.figures)];
  });
  return plainTable(["halts when", "", ""], rows);
}

const VERBS = {
  pause: ["Pause", "The rollout stays at this share until it is resumed. Its halt conditions stay active."],
  resume: ["Resume", "The rollout continues. After a rollback it starts again with the first stage."],
  promote: ["Promote", "All of the channel’s traffic goes to the new version now, whatever the stages say."],
  rollback: ["Roll back", "All of the channel’s traffic goes back to the old version now."],
};

function actionButton(it, verb) {
  const button = el("button", verb === "rollback" ? "danger" : "", VERBS[verb][0]);
  button.type = "button";
  button.addEventListener("click", () => sure(it, verb));
  return button;
}

// ---- confirmation

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
    if (error instanceof NotLetIn) return act.page.leave(error.message);
    $("trouble").textContent = error.message;
    return;
  }
  act.page.refresh();
}

$("sure-no").addEventListener("click", () => $("sure").close());
$("sure-yes").addEventListener("click", () => confirmed());
