// The controller's source, the applied revision, and rejected revisions with reasons.
import { ago, count, el, empty, part, put, quiet, seconds, table, tag, when } from "./dom.js";

const RESULTS = { applied: "good", refused: "bad", failed: "bad", superseded: "quiet" };
const SILENT_S = 120;

export function shortRevision(revision) {
  const [branch, commit] = revision.split("@");
  return commit ? `${branch}@${commit.slice(0, 12)}` : revision;
}

const named = (revision, message) => el("span", "", el("code", "", shortRevision(revision) || "nothing"), message ? ` ${message}` : "");

export function branchLines(told) {
  const it = told.report;
  if (!it) return empty("The controller has not reported yet.");
  const lines = [];
  if (told.age_s > SILENT_S) lines.push(el("p", "warn", `No report from the controller for ${seconds(told.age_s)}: the fleet keeps running, but no change is applied.`));
  if (it.suspended !== null) lines.push(el("p", "warn", tag("warn", "suspended"), ` ${it.suspended || "no reason given"}; resume with shoal resume`));
  if (it.trouble) lines.push(el("p", "bad words", `The source cannot be read: ${it.trouble}`));
  const applied = it.applied && it.applied === it.desired;
  lines.push(el("p", "words", applied ? tag("good", "applied") : tag("warn", it.desired ? "being applied" : "no revision"), " ", named(it.desired || it.applied, it.desired_message),
    applied && it.applied_unix_s ? quiet(` ${ago(it.applied_unix_s)}`) : null));
  if (!applied && it.applied) lines.push(el("p", "words quiet", "in force: ", named(it.applied, "")));
  if (it.problem_count) {
    lines.push(el("p", "words", tag("bad", "refused"), " ", named(it.tip, it.tip_message)));
    lines.push(el("ul", "plain", it.problems.slice(0, 10).map((each) => el("li", "words mono bad", each))));
    if (it.problem_count > 10) lines.push(quiet(`and ${count(it.problem_count - 10)} more problems`));
  }
  if (it.object_count) lines.push(el("p", "warn", `${count(it.object_count)} declared objects differ from their declaration.`));
  return el("div", "card", lines);
}

export function branch(page) {
  const here = part("Branch"), history = part("Revision history"), objects = part("Objects that differ");
  return {
    nodes: [here.whole, objects.whole, history.whole],
    everyMs: 5000,
    refresh: () => page.fill(here, async () => {
      const told = await page.ask("v1/branch"), it = told.report;
      put(here.body, branchLines(told), it ? quiet(`Reported by the controller ${seconds(told.age_s)} ago; source: ${it.source}.`) : null);
      put(history.body, it && it.history.length ? table("Revisions", ["revision", "result", "#when", "message", "why"], it.history.map((each) => Object.assign([
        el("code", "", shortRevision(each.revision)), el("span", RESULTS[each.result] || "", each.count > 1 ? `${each.result}, ${each.count} times` : each.result),
        each.at_unix_s ? when(each.at_unix_s) : "", each.message, each.detail,
      ], { key: each.revision }))) : empty("No revisions yet."));
      put(objects.body, it && it.objects.length ? table("Objects", ["kind", "name", "state", "reason", "message"], it.objects.map((each) => Object.assign(
        [each.kind, each.name, each.state, each.reason, each.message], { key: `${each.kind}/${each.name}` }))) : el("p", "good", "✓ Everything is as declared."),
      it && it.object_count > it.objects.length ? empty(`other: ${count(it.object_count - it.objects.length)} more`) : null);
    }),
  };
}
