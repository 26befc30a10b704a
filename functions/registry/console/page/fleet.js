// Pools and replicas, with figures of latency and load over a window.
import { bar, spark } from "./spark.js";
import { button, count, el, empty, facts, part, percent, put, quiet, seconds, short, table, tag, wait } from "./dom.js";

const WINDOWS = ["15m", "1h", "6h", "1d"];
const LINES = [
  ["ttft_p99_s", "First token p99", wait], ["gap_p99_s", "Gap p99", wait], ["queue_s", "Queue", wait],
  ["kv_usage_ratio", "KV cache", percent, 1], ["tokens_per_s", "Tokens per second", short],
];
const PHASES = { ready: "good", warm: "good", starting: "warn", pending: "warn", draining: "warn" };
const POOLS_SHOWN = 60;

export function sparks(series, pool, lines = LINES) {
  const none = new Array(series ? series.points : 2).fill(null);
  return el("div", "sparks", lines.map(([figure, name, format, ceiling]) => spark(name, (series && series.series[figure][pool]) || none, format, ceiling ?? null)));
}

// Figures that show how callers are served.
export const PAGING_LINES = LINES.slice(0, 4);

export function poolCards(pools, series, lines, more = () => []) {
  if (!pools.length) return empty("No heartbeat has arrived yet.");
  const shown = pools.slice(0, POOLS_SHOWN), rest = pools.slice(POOLS_SHOWN);
  const cards = shown.map((pool) => el("article", "card pool", el("div", "row", el("h3", "", pool.name), readiness(pool)),
    el("p", "quiet line", `${count(pool.running)} running, ${count(pool.waiting)} waiting in engines, KV cache ${percent(pool.kv_usage_ratio)}`), sparks(series, pool.name, lines), more(pool)));
  const others = rest.length ? el("p", "quiet", `other: ${count(rest.length)} pools, ${count(sum(rest, "ready"))} of ${count(sum(rest, "replicas"))} replicas ready`) : null;
  return el("div", "", el("div", "pools", cards), others);
}

const sum = (rows, name) => rows.reduce((total, each) => total + each[name], 0);

function readiness(pool) {
  if (pool.ready === pool.replicas) return tag("good", `${pool.ready} ready`);
  return tag(pool.ready ? "warn" : "bad", `${pool.ready} of ${pool.replicas} ready`);
}

export function seriesNote(series) {
  if (!series) return "";
  const from = series.source === "prometheus" ? "Lines from Prometheus" : `Lines from the registry’s own samples; ${series.trouble}`;
  return `${from}; ${series.window}.`;
}

export function fleet(page) {
  let window = "1h", search = "";
  const field = el("input");
  Object.assign(field, { type: "search", placeholder: "replica, pool or phase", maxLength: 130, ariaLabel: "Find replicas" });
  field.addEventListener("input", () => { search = field.value.trim(); draw(); });
  const choices = WINDOWS.map((each) => button(each, () => { window = each; mark(); page.refresh(); }));
  const mark = () => choices.forEach((each) => each.setAttribute("aria-pressed", String(each.textContent === window)));
  const group = el("div", "choice", choices);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Window");
  const pools = part("Pools", group), replicas = part("Replicas", field), note = el("p", "quiet");
  let state = null, series = null;
  mark();

  function draw() {
    if (!state) return;
    put(pools.body, poolCards(state.pools, series, LINES, adapters));
    note.textContent = seriesNote(series);
    const found = state.replicas.filter((each) => !search || [each.id, each.pool, each.phase].some((text) => text.includes(search)));
    const rows = found.map((each) => Object.assign([
      each.id, each.pool, el("span", PHASES[each.phase] || "bad", each.reason && each.phase !== "ready" ? `${each.phase}: ${each.reason}` : each.phase),
      count(each.running), count(each.waiting), bar(each.kv_usage_ratio, percent(each.kv_usage_ratio), each.kv_usage_ratio > 0.95 ? "bad" : ""), count(each.adapters), count(each.room), seconds(each.age_s),
    ], { key: each.id }));
    const more = state.replicas_total - state.replicas.length;
    put(replicas.body, rows.length ? table("Replicas", ["replica", "pool", "phase", "#running", "#waiting", "KV cache", "#adapters", "#free slots", "#heartbeat age"], rows) : empty("No matching replica."),
      more > 0 ? empty(`other: ${count(more)} more replicas`) : null);
  }

  return {
    nodes: [pools.whole, note, replicas.whole],
    everyMs: 5000,
    async refresh() {
      await page.fill(pools, async () => {
        [state, series] = await Promise.all([page.ask("console/state"), page.ask(`v1/fleet/series?window=${window}`)]);
        page.about(state);
        draw();
      });
    },
  };
}

function adapters(pool) {
  const tiers = pool.tiers;
  if (!tiers) return [];
  return [
    facts([["adapter versions", count(tiers.registered)], ["in an engine", count(tiers.in_engine)], ["on a node’s disk", count(tiers.on_disk)],
      ["in the store only", count(tiers.in_store)], ["free adapter slots", count(pool.room)]]),
    ...tiers.failing.map((each) => el("p", "words bad", `${each.name} cannot be loaded: ${each.words}`)),
  ];
}
