// Reports of drills: the injected failure, the results of its checks, and when its alert fired and cleared.
import { count, el, empty, link, part, put, quiet, table, tag, when } from "./dom.js";

export function drills(page) {
  const here = part("Drills");
  return {
    nodes: [here.whole],
    everyMs: 10000,
    refresh: () => page.fill(here, async () => {
      const told = await page.ask("v1/drills");
      if (!told.data.length) return put(here.body, empty(told.configured ? "No drill has run on this fleet yet. shoal drill --list shows all drills." : "No report folder is configured. Run drills with shoal drill on a local fleet or on staging."));
      put(here.body, told.data.map(card), told.total > told.data.length ? empty(`other: ${count(told.total - told.data.length)} older reports`) : null);
    }),
  };
}

const NAMES = ["drill", "name", "failure_mode", "mode"], VERDICTS = ["passed", "ok", "good", "success"];
const first = (report, names) => names.map((name) => report[name]).find((value) => value !== undefined && value !== null);

function card(each) {
  const report = each.report, passed = first(report, VERDICTS), mode = String(first(report, ["failure_mode", ...NAMES]) || "");
  const verdict = each.trouble ? tag("warn", "cannot be read") : passed === true ? tag("good", "✓ held") : passed === false ? tag("bad", "✕ failed") : null;
  const checks = Array.isArray(report.checks) ? report.checks.filter((check) => check !== null && typeof check === "object") : [];
  const rest = Object.entries(report).filter(([name]) => name !== "checks" || !checks.length);
  const told = rest.filter(([, value]) => value === null || typeof value !== "object");
  const deep = rest.filter(([, value]) => value !== null && typeof value === "object");
  const facts = told.length ? el("dl", "facts", told.flatMap(([name, value]) => [el("dt", "", name.replaceAll("_", " ")), el("dd", "", said(name, value))])) : null;
  return el("article", "card", el("div", "row", el("h3", "", String(first(report, NAMES) || each.file)), verdict, quiet(when(each.changed_unix_s)), /^[a-z0-9-]{1,64}$/.test(mode) ? link(`runbook/${mode}`, "runbook") : null),
    each.trouble ? el("p", "words warn", each.trouble) : null,
    checks.length && report.fault ? el("p", "words", String(report.fault)) : null,
    checks.length ? el("ul", "plain", checks.map(check)) : facts,
    checks.length ? el("details", "", el("summary", "", "the whole report"), facts, deep.map(([name, value]) => folded(name, value))) : deep.map(([name, value]) => folded(name, value)));
}

// Checks come first, because readers look up a report for their results.
function check(each) {
  const [kind, sign, word] = each.ok === true ? ["good", "✓", "held"] : each.ok === false ? ["bad", "✕", "did not hold"] : ["warn", "?", "not checked"];
  const mark = el("span", kind, sign);
  mark.setAttribute("role", "img");
  mark.setAttribute("aria-label", word);
  return el("li", "words", mark, " ", String(each.what), each.words ? quiet(`  ${each.words}`) : null);
}

function said(name, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return name.endsWith("unix_s") ? when(value) : String(+value.toFixed(3));
  return value === null ? "–" : String(value);
}

function folded(name, value) {
  const made = el("details", "", el("summary", "", name.replaceAll("_", " "), quiet(` (${Array.isArray(value) ? value.length : Object.keys(value).length})`)));
  made.append(el("div", "", nested(name, value)));
  return made;
}

function nested(name, value) {
  const rows = Array.isArray(value) && value.length && value.every((each) => each !== null && typeof each === "object" && !Array.isArray(each));
  if (rows) {
    const headings = [...new Set(value.flatMap((each) => Object.keys(each)))].slice(0, 8);
    return table(name, headings, value.map((each) => headings.map((heading) => text(heading, each[heading]))));
  }
  const entries = Array.isArray(value) ? value.map((each) => ["", each]) : Object.entries(value);
  return el("ul", "plain", entries.map(([key, each]) => el("li", "words", key ? `${key.replaceAll("_", " ")}: ` : "", text(key, each))));
}

const text = (name, value) => (value === undefined ? "" : value !== null && typeof value === "object" ? JSON.stringify(value) : said(name, value));
