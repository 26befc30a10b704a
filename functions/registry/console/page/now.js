// First view for an operator on call: alerts with runbooks, how callers are served, and what has changed.
import { PAGING_LINES, poolCards, seriesNote } from "./fleet.js";
import { ago, el, empty, link, part, put, quiet, tag } from "./dom.js";
import { branchLines } from "./branch.js";

export function now(page) {
  const alerts = part("Alerts"), pools = part("Pools"), rollouts = part("Rollouts under way"), branch = part("Revision");
  const note = el("p", "quiet");
  return {
    nodes: [alerts.whole, pools.whole, note, rollouts.whole, branch.whole],
    everyMs: 5000,
    refresh: () => Promise.all([
      page.fill(alerts, async () => put(alerts.body, alertList(await page.ask("v1/alerts")))),
      page.fill(branch, async () => put(branch.body, branchLines(await page.ask("v1/branch")))),
      page.fill(pools, async () => {
        const [state, series] = await Promise.all([page.ask("console/state"), page.ask("v1/fleet/series?window=1h")]);
        page.about(state);
        put(pools.body, poolCards(state.pools, series, PAGING_LINES));
        note.textContent = seriesNote(series);
        put(rollouts.body, rolling(state.rollouts.filter((each) => each.active)));
      }),
    ]),
  };
}

function alertList(told) {
  if (!told.data.length) return el("p", "good", "✓ No alerts.");
  const more = told.total - told.data.length;
  return el("div", "", told.data.map(alertCard), more > 0 ? empty(`other: ${more} more alerts`) : null);
}

function alertCard(alert) {
  const fires = alert.state === "firing";
  const mood = !fires ? "quiet" : alert.severity === "page" ? "bad" : "warn";
  const labels = Object.entries(alert.labels).map(([name, value]) => `${name}=${value}`).join("  ");
  return el("article", `card alert ${mood}`,
    el("div", "row", el("h3", "", alert.name), tag(mood, fires ? `firing: ${alert.severity}` : "pending"), alert.since_unix_s ? quiet(ago(alert.since_unix_s)) : null),
    el("p", "words", alert.summary), el("div", "row", runbook(alert), labels ? el("span", "quiet mono words", labels) : null));
}

// Our runbooks are part of the console. Another runbook's address is only shown as text, since a label must not be a link.
function runbook(alert) {
  if (/^[a-z0-9-]{1,64}$/.test(alert.failure_mode)) return link(`runbook/${alert.failure_mode}`, "Runbook");
  return quiet(alert.runbook_url);
}

function rolling(active) {
  if (!active.length) return empty("No active rollouts.");
  return el("ul", "plain", active.map((each) => el("li", "words", link("rollouts", `${each.model}:${each.channel}`), ` ${each.from_version} → ${each.to_version}, `,
    each.percent ? `${each.percent} %, stage ${each.stage + 1} of ${each.stages.length}` : "being loaded", ` (${each.state})`, each.why ? quiet(`  ${each.why}`) : null)));
}
