// A runbook, rendered from Markdown: headings, paragraphs, lists, code. Other Markdown is shown as text.
import { el, empty, link, part, put } from "./dom.js";

let pages = null; // loaded once; runbooks do not change while the page is open

export function runbook(page, _, mode) {
  const here = part("Runbook", link("now", "Now"));
  return {
    nodes: [here.whole],
    everyMs: 0,
    refresh: () => page.fill(here, async () => {
      pages = pages || await page.ask("console/runbooks.json");
      put(here.body, Object.hasOwn(pages, mode) ? el("div", "prose card", blocks(pages[mode])) : empty(`There is no runbook of that name. Runbooks: ${Object.keys(pages).join(", ")}.`));
    }),
  };
}

function blocks(text) {
  const made = [];
  let list = null, code = null, paragraph = [];
  const flush = () => { if (paragraph.length) made.push(el("p", "", inline(paragraph.join(" ")))); paragraph = []; };
  for (const line of text.split("\n")) {
    if (line.startsWith("```")) { flush(); if (code) { code = null; } else { code = el("pre"); made.push(code); list = null; } continue; }
    if (code) { code.append(`${line}\n`); continue; }
    const heading = /^(#{1,4}) (.*)$/.exec(line), item = /^(?:\*|-|(\d+)\.) (.*)$/.exec(line);
    if (heading) { flush(); list = null; made.push(el("h3", "", inline(heading[2]))); continue; }
    if (item) {
      flush();
      const kind = item[1] ? "OL" : "UL";
      if (!list || list.tagName !== kind) made.push(list = el(kind.toLowerCase()));
      list.append(el("li", "", inline(item[2])));
      continue;
    }
    if (!line.trim()) { flush(); list = null; continue; }
    if (list && /^\s/.test(line)) { list.lastChild.append(" ", ...inline(line.trim())); continue; }
    list = null;
    paragraph.push(line.trim());
  }
  flush();
  return made;
}

// `code`, **strong**, [words](other.md). Links to other runbooks work; other links become text.
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]+\))/).filter(Boolean).map((piece) => {
    if (piece.startsWith("`") && piece.endsWith("`") && piece.length > 2) return el("code", "", piece.slice(1, -1));
    if (piece.startsWith("**")) return el("strong", "", piece.slice(2, -2));
    const to = /^\[([^\]]+)\]\(([^)]+)\)$/.exec(piece);
    if (!to) return document.createTextNode(piece);
    const other = /^([a-z0-9-]+)\.md$/.exec(to[2]);
    return other ? link(`runbook/${other[1]}`, to[1]) : document.createTextNode(to[1]);
  });
}
