// Cost of tenants and models from the ledger, and of pools with paid and idle time.
import { bar } from "./spark.js";
import { button, count, el, empty, money, part, percent, put, quiet, seconds, short, table } from "./dom.js";

const DAYS = [["1 day", 1], ["7 days", 7], ["30 days", 30]];
const BY = ["tenant", "model", "pool", "class", "day"];
const SHOWN = 30;

function choice(label, names, chosen, act) {
  const buttons = names.map((name) => button(name, () => { mark(name); act(name); }));
  const mark = (name) => buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.textContent === name)));
  mark(chosen);
  const made = el("div", "choice", buttons);
  made.setAttribute("role", "group");
  made.setAttribute("aria-label", label);
  return made;
}

export function cost(page) {
  let days = 7, by = "tenant";
  const spans = choice("Window", DAYS.map(([name]) => name), "7 days", (name) => { days = DAYS.find((each) => each[0] === name)[1]; page.refresh(); });
  const usage = part("Usage", choice("By", BY, by, (name) => { by = name; page.refresh(); })), pools = part("Cost of pools", spans);
  const since = () => Math.floor(Date.now() / 1000 - 86400 * days);
  return {
    nodes: [pools.whole, usage.whole],
    everyMs: 30000,
    refresh: () => Promise.all([
      page.fill(usage, async () => put(usage.body, used(await page.ask(`v1/usage?by=${by}&since=${since()}`), by))),
      page.fill(pools, async () => put(pools.body, paid(await page.ask(`v1/usage/pools?since=${since()}`)))),
    ]),
  };
}

function used(told, by) {
  if (!told.data.length) return empty("No usage in this window.");
  const sorted = by === "day" ? told.data : [...told.data].sort((one, other) => other.cost - one.cost || other.completion_tokens - one.completion_tokens);
  const rows = sorted.slice(0, SHOWN), rest = sorted.slice(SHOWN), whole = told.total.cost;
  const line = (name, each, key) => Object.assign([
    name, count(each.requests), short(each.prompt_tokens), short(each.cached_tokens), short(each.completion_tokens), short(each.accelerator_seconds),
    money(each.cost), money(each.cost_per_million_tokens), whole ? bar(each.cost / whole, percent(each.cost / whole)) : "–",
  ], { key });
  const name = (each) => (by === "day" ? new Date(1000 * each.day).toISOString().slice(0, 10) : each[by] || "(all others)");
  const lines = rows.map((each) => line(name(each), each, String(each[by])));
  if (rest.length) lines.push(line(quiet(`other (${count(rest.length)})`), added(rest), " other"));
  lines.push(line(el("strong", "", "all"), told.total, " all"));
  const note = told.last_told_unix_s ? quiet(`Gateways last reported ${seconds(Date.now() / 1000 - told.last_told_unix_s)} ago.`) : null;
  return el("div", "", table("Usage", [by, "#requests", "#prompt", "#cached", "#completion", "#accelerator-s", "#cost", "#per 1M tokens", "share"], lines),
    whole ? null : empty("No pool has a price. Set it with the annotation shoal.dev/accelerator-price-per-hour of its InferenceService."),
    told.has_more ? empty("The list is cut: there are more rows than one answer holds. `shoal usage` has filters.") : null, note);
}

function added(rows) {
  const made = { cost_per_million_tokens: null };
  for (const row of rows) for (const [name, value] of Object.entries(row)) if (typeof value === "number") made[name] = (made[name] || 0) + value;
  const tokens = made.prompt_tokens + made.completion_tokens;
  made.cost_per_million_tokens = tokens ? (1e6 * made.cost) / tokens : null;
  return made;
}

function paid(told) {
  if (!told.data.length) return empty("No replica ran in this window.");
  const rows = told.data.map((each) => Object.assign([
    each.pool, money(each.paid_cost), each.used_ratio === null ? money(each.used_cost) : bar(each.used_ratio, `${money(each.used_cost)}, ${percent(each.used_ratio)} of the seconds`),
    money(each.lost_cost), money(each.idle_cost), money(each.cost_per_million_tokens), money(each.break_even_per_million_tokens), short(each.tokens), seconds(60 * each.minutes_seen),
  ], { key: each.pool }));
  return el("div", "", table("Pools", ["pool", "#paid", "used", "#lost", "#idle", "#per 1M tokens", "#break-even per 1M", "#tokens", "#seen for"], rows),
    el("p", "quiet", "In the operator’s currency. Lost: attempts that failed or were not needed. Idle: paid but not used. Break-even: price per million tokens that covers all costs."));
}
