// Models of the published snapshot, searched by a part of their id.
import { count, el, empty, part, put, table } from "./dom.js";

export function models(page) {
  const field = el("input");
  Object.assign(field, { type: "search", placeholder: "part of an id", maxLength: 130, ariaLabel: "Find models", id: "search" });
  field.addEventListener("input", () => page.refresh());
  const here = part("Models", field);
  return {
    nodes: [here.whole],
    everyMs: 5000,
    refresh: () => page.fill(here, async () => {
      const state = await page.ask(`console/state?search=${encodeURIComponent(field.value.trim())}`);
      page.about(state);
      here.heading.textContent = `Models (${count(state.models_total)})`;
      const rows = state.models.map((each) => Object.assign([
        each.id, Object.entries(each.channels).map(([channel, version]) => `${channel} → ${version}`).join(", "),
        count(each.versions), each.type === "base" ? "itself" : each.pool, each.declared_in,
      ], { key: each.id }));
      const more = state.models_found - state.models.length;
      put(here.body, rows.length ? table("Models", ["model", "channels", "#versions", "base", "declared in"], rows) : empty("No matching model."),
        more > 0 ? empty(`other: ${count(more)} more; type a part of the id`) : null);
    }),
  };
}
