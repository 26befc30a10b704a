// Audit log of changes through the registry, and the verification of its hash chain.
import { withParams } from "./ask.js";
import { button, count, el, empty, part, put, quiet, table, when } from "./dom.js";

const LIMIT = 50;

export function audit(page, params) {
  const field = el("input");
  Object.assign(field, { type: "search", placeholder: "tenant", maxLength: 64, ariaLabel: "Filter by tenant", value: params.get("tenant") || "" });
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") page.go(withParams("audit", { tenant: field.value.trim() })); });
  const verdict = el("p", "words");
  verdict.setAttribute("role", "status");
  const here = part("Audit", field, button("Verify the chain", () => page.fill(here, async () => verify(verdict, page)))), pager = el("div", "row");
  return {
    nodes: [here.whole, verdict, pager],
    everyMs: params.has("after") ? 0 : 10000,
    refresh: () => page.fill(here, async () => {
      const told = await page.ask(withParams("v1/audit", { limit: LIMIT, after: params.get("after"), tenant: params.get("tenant") }));
      const rows = told.data.map((each) => Object.assign([
        when(each.at_unix_s), each.actor, each.action, (each.detail && each.detail.target) || each.subject, each.tenant, details(each.detail),
      ], { key: each.seq }));
      put(here.body, rows.length ? table("Audit", ["#when", "actor", "action", "subject", "tenant", "details"], rows) : empty("No changes through the registry."));
      put(pager, told.next_after ? button("Older", () => page.go(withParams("audit", { tenant: params.get("tenant"), after: told.next_after }))) : null,
        params.has("after") ? button("Newest", () => page.go(withParams("audit", { tenant: params.get("tenant") }))) : null);
    }),
  };
}

function details(detail) {
  const told = Object.entries(detail || {}).filter(([name]) => name !== "target");
  return told.length ? quiet(told.map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ").slice(0, 300)) : "";
}

async function verify(verdict, page) {
  verdict.textContent = "…";
  const told = await page.ask("v1/audit/verify");
  verdict.className = told.sound ? "words good" : "words bad";
  verdict.textContent = told.sound ? `✓ ${count(told.entries)} entries, sound; head ${told.head}` : `✕ broken at entry ${told.broken_at}: ${told.reason}`;
}
