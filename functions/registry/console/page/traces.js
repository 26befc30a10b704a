// Requests: a search, and one request with its waterfall and the reason for its routing.
import { withParams } from "./ask.js";
import { button, clipped, count, el, empty, facts, link, part, put, quiet, table, tag, when } from "./dom.js";

const SINCE = [["900", "15 minutes"], ["3600", "an hour"], ["86400", "a day"], ["604800", "a week"]];
const FIELDS = ["tenant", "model", "pool", "replica"];
const LIMIT = 50;
const ms = (value) => (value === null || value === undefined ? "–" : value >= 10000 ? `${(value / 1000).toFixed(1)}\u00a0s` : `${value.toFixed(value < 10 ? 1 : 0)}\u00a0ms`);

export function traces(page, params) {
  const id = input("request", "request id: open it", params.get("request") || "");
  id.type = "search";
  const fields = FIELDS.map((name) => [name, input(name, name, params.get(name) || "")]);
  const since = el("select", "", SINCE.map(([value, words]) => { const one = el("option", "", `last ${words}`); one.value = value; return one; }));
  since.value = params.get("ago_s") || "3600";
  since.ariaLabel = "Since";
  const errors = check("errors only", params.has("errors")), slowest = check("slowest first", params.has("slowest"));
  const form = el("form", "form", id, fields.map(([, field]) => field), since, errors.whole, slowest.whole, submit());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (id.value.trim()) return page.go(`trace/${encodeURIComponent(id.value.trim())}`);
    const wanted = Object.fromEntries(fields.map(([name, field]) => [name, field.value.trim()]));
    page.go(withParams("traces", { ...wanted, ago_s: since.value, errors: errors.box.checked, slowest: slowest.box.checked }));
  });
  const here = part("Requests"), pager = el("div", "row");
  const until = params.get("until");

  return {
    nodes: [form, here.whole, pager],
    everyMs: until ? 0 : 10000,
    refresh: () => page.fill(here, async () => {
      const asked = Object.fromEntries([...FIELDS, "errors", "slowest", "until"].map((name) => [name, params.get(name)]));
      const told = await page.ask(withParams("v1/traces", { ...asked, ago_s: params.get("ago_s") || "3600", limit: LIMIT }));
      put(here.body, told.data.length ? table("Requests", ["#when", "request", "tenant", "model", "replica", "#status", "#first token", "#total", "#tokens in + out", "result"], told.data.map(row)) : empty("No matching request."));
      const older = told.has_more && !params.has("slowest");
      put(pager, older ? button("Older", () => page.go(withParams("traces", { ...Object.fromEntries(params), until: told.data[told.data.length - 1].ts }))) : null,
        until ? button("Newest", () => { const rest = new URLSearchParams(params); rest.delete("until"); page.go(`traces?${rest}`); }) : null,
        told.has_more && !older ? quiet(`the ${LIMIT} slowest; narrow the search to see others`) : null);
    }),
  };
}

const failed = (status) => status >= 400;

function row(each) {
  return Object.assign([
    when(each.ts), clipped(link(`trace/${encodeURIComponent(each.request_id)}`, each.request_id), each.request_id), each.tenant_id, clipped(el("span", "", `${each.model_id}@${each.version}`), `${each.model_id}@${each.version}`), clipped(el("span", "", each.replica_id || "none"), each.replica_id),
    el("span", failed(each.status) ? "bad" : "", failed(each.status) ? `${each.status} ✕` : String(each.status)), ms(each.first_token_ms), ms(each.total_ms),
    each.prompt_tokens === null ? "–" : `${count(each.prompt_tokens)} + ${count(each.completion_tokens)}`, each.error || each.finish_reason,
  ], { key: `${each.request_id} ${each.ts}` });
}

function input(name, words, value) {
  const made = el("input");
  Object.assign(made, { type: "text", name, placeholder: words, ariaLabel: words, value, maxLength: 260, autocomplete: "off", spellcheck: false });
  return made;
}

function check(words, checked) {
  const box = el("input");
  box.type = "checkbox";
  box.checked = checked;
  return { box, whole: el("label", "check", box, words) };
}

function submit() { const made = el("button", "main", "Search"); made.type = "submit"; return made; }

// ---- one request

export function trace(page, _, id) {
  const here = part("Request", link("traces", "Search"));
  return {
    nodes: [here.whole],
    everyMs: 0,
    refresh: () => page.fill(here, async () => put(here.body, described(await page.ask(`v1/traces/${encodeURIComponent(id)}`)))),
  };
}

function described(row) {
  const mood = failed(row.status) ? "bad" : "good";
  return el("div", "",
    el("div", "row", el("h3", "mono words", row.request_id), tag(mood, failed(row.status) ? `${row.status} ✕` : `${row.status} ✓`), row.error ? el("span", "bad", row.error) : quiet(row.finish_reason)),
    waterfall(row), el("h3", "gap", "Why this replica"), routing(row), el("h3", "gap", "Facts"), facts([
      ["arrived", when(row.ts)], ["tenant, key", `${row.tenant_id}, ${row.key_id}`], ["class", `${row.class}, ${row.stream ? "stream" : "whole answer"}`],
      ["model", `${row.model_id}@${row.version}`], row.degraded_from ? ["instead of", row.degraded_from] : null, ["pool, replica", `${row.pool}, ${row.replica_id || "none"}`],
      ["attempts", count(row.attempt_count)],
      ["tokens", row.prompt_tokens === null ? "not reported" : `${count(row.prompt_tokens)} prompt (${count(row.cached_tokens)} cached), ${count(row.completion_tokens)} completion`],
      ["between tokens", row.inter_token_p50_ms === null ? "not streamed" : `p50 ${ms(row.inter_token_p50_ms)}, p99 ${ms(row.inter_token_p99_ms)}`],
      ["cost", `${row.kv_token_seconds.toFixed(0)} KV-token-seconds, ${row.gpu_seconds.toFixed(3)} accelerator-seconds`],
      ["snapshot", count(row.snapshot_epoch)], ["trace id", el("span", "mono words", row.trace_id)],
    ]));
}

// Each part of the time as a bar at its position, with its name and duration as text.
function waterfall(row) {
  const whole = Math.max(row.total_ms, 0.001);
  const lines = row.parts.map((each) => {
    const made = el("div", "fall-bar");
    made.style.marginLeft = `${Math.min(99.4, (100 * each.start_ms) / whole)}%`;
    made.style.width = `${Math.max(0.6, Math.min(100 - (100 * each.start_ms) / whole, (100 * each.ms) / whole))}%`;
    const line = el("li", "", el("span", "fall-name", each.name), el("span", "fall-track", made), el("span", "number", ms(each.ms)));
    return line;
  });
  const list = el("ol", "fall", lines, el("li", "fall-total", el("span", "fall-name", "total"), el("span", "fall-track"), el("span", "number", ms(row.total_ms))));
  list.setAttribute("aria-label", "Where the time went");
  return list;
}

const TERMS = {
  predicted_ms: "first token predicted after", queue_ms: "of this, in its queue", prefill_ms: "prefill of uncached tokens", adapter_ms: "load of the adapter",
  outstanding: "its open requests", cached_tokens: "prompt tokens in its cache", load_elsewhere: "a copy of the adapter would be faster at",
};

const REASONS = {
  least_predicted_wait: "its first token was predicted soonest", prefix: "a part of the prompt is in its cache", session: "the session’s last request went there",
  spread: "another replica has the prefix in its cache, but has its share of traffic or is too full", panic: "most of the pool is ejected, so ejections are ignored",
};

function routing(row) {
  const terms = Object.entries(row.route_score).filter(([name]) => name !== "reason");
  const actual = row.first_token_ms === null ? null : ["first token came after", ms(row.first_token_ms)];
  if (!terms.length) return empty(row.route_reason ? `Chosen by ${row.route_reason}.` : "No replica was chosen.");
  return el("div", "", el("p", "words", el("strong", "", row.route_reason || "no reason given"), REASONS[row.route_reason] ? `: ${REASONS[row.route_reason]}.` : ".", " Prediction at that time:"),
    facts([...terms.map(([name, value]) => [TERMS[name] || name.replaceAll("_", " "), said(name, value)]), actual]));
}

function said(name, value) {
  if (value !== null && typeof value === "object") return Object.entries(value).map(([inner, each]) => `${inner.replaceAll("_", " ")} ${typeof each === "number" ? +each.toFixed(2) : String(each)}`).join(", ");
  if (typeof value === "number") return name.endsWith("_ms") ? ms(value) : String(+value.toFixed(3));
  return String(value);
}
