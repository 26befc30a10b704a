// Tenants with their use, also as shares of their limits, the busiest first.
import { bar } from "./spark.js";
import { count, el, empty, link, money, part, percent, put, quiet, seconds, short, table } from "./dom.js";

const NAMES = {
  requests_per_minute: "requests a minute", input_tokens_per_minute: "input tokens a minute", output_tokens_per_minute: "output tokens a minute",
  kv_token_seconds_per_minute: "KV-token-seconds a minute", gpu_seconds_per_hour: "accelerator-seconds an hour",
};

export function tenants(page) {
  const field = el("input");
  Object.assign(field, { type: "search", placeholder: "part of a name", maxLength: 130, ariaLabel: "Find tenants" });
  field.addEventListener("input", () => page.refresh());
  const here = part("Tenants", field), note = el("p", "quiet");
  return {
    nodes: [here.whole, note],
    everyMs: 10000,
    refresh: () => page.fill(here, async () => {
      const told = await page.ask(`v1/tenants?search=${encodeURIComponent(field.value.trim())}`);
      here.heading.textContent = `Tenants (${count(told.total)})`;
      const rows = told.data.map((each) => Object.assign([
        link(`traces?${new URLSearchParams({ tenant: each.name })}`, each.name), each.tier, count(each.used.requests), each.used.failed ? el("span", "bad", count(each.used.failed)) : "0",
        el("span", "", short(each.used.prompt_tokens), quiet(` (${short(each.used.cached_tokens)} cached)`), ` + ${short(each.used.completion_tokens)}`), money(each.used.cost), limits(each),
      ], { key: each.name }));
      if (told.other) rows.push(Object.assign([quiet(`other (${count(told.found - told.data.length)})`), "", count(told.other.requests), count(told.other.failed),
        `${short(told.other.prompt_tokens)} + ${short(told.other.completion_tokens)}`, money(told.other.cost), ""], { key: " other" }));
      put(here.body, rows.length ? table("Tenants", ["tenant", "tier", "#requests", "#failed", "#tokens in + out", "#cost", "share of limits"], rows) : empty("No matching tenant."));
      const lately = told.recent_s ? `Shares are of the last ${seconds(told.recent_s)}` : "Shares are of the whole time, because the last minutes are not known yet";
      note.textContent = `Used in the last ${seconds(told.hours_s)}. ${lately}, from the ledger, which is some seconds late. Only gateways know open requests.`;
    }),
  };
}

function limits(tenant) {
  const shares = tenant.share_recently || tenant.share_of_hours;
  const found = Object.entries(NAMES).filter(([name]) => name in shares).sort((one, other) => shares[other[0]] - shares[one[0]]);
  const open = tenant.limits.concurrent_requests;
  const lines = found.map(([name, words]) => {
    const mood = shares[name] >= 1 ? "bad" : shares[name] >= 0.8 ? "warn" : "";
    const said = `${percent(shares[name])} of ${short(tenant.limits[name])} ${words}${shares[name] >= 1 ? ": over" : ""}`;
    return el("li", "", bar(shares[name], said, mood));
  });
  if (open !== null) lines.push(el("li", "quiet", `at most ${count(open)} requests at a time`));
  return lines.length ? el("ul", "plain", lines) : quiet("none");
}
