// Elements, tables, figures.
//
// Rule: data of the fleet is inserted as text (textContent), never as markup, because tenants choose names and engines
// choose messages. `el` is the only way to insert data into the page.

const SVG = "http://www.w3.org/2000/svg";

const nodes = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== "")
  .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));

export function el(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...nodes(children));
  return made;
}

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...nodes(children));
  return made;
}

// Link to a view of this page. Addresses from the fleet's data are never linked.
export function link(hash, ...children) {
  const made = el("a", "", ...children);
  made.href = `#${hash}`;
  return made;
}

export function button(label, act, className = "") {
  const made = el("button", className, label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// A heading that begins with "#" marks a column of numbers. A row is an array of cells; its `key` identifies it for
// keyboard navigation. On a phone each row is a card, and each cell shows its heading.
export function table(caption, headings, rows) {
  const numeric = headings.map((heading) => heading.startsWith("#"));
  const names = headings.map((heading) => heading.replace("#", ""));
  const head = el("tr", "", names.map((name, at) => role(scoped(el("th", numeric[at] ? "number" : "", name)), "columnheader")));
  const body = rows.map((cells, index) => {
    const made = el("tr", "", cells.map((cell, at) => {
      const one = role(el("td", numeric[at] ? "number" : at === 0 ? "name" : "", cell), "cell");
      one.dataset.label = names[at];
      return one;
    }));
    made.dataset.key = cells.key === undefined ? String(index) : String(cells.key);
    made.tabIndex = index === 0 ? 0 : -1;
    return role(made, "row");
  });
  const made = role(el("table", "", el("caption", "", caption), role(el("thead", "", role(head, "row")), "rowgroup"), role(el("tbody", "", body), "rowgroup")), "table");
  return el("div", "wide", made);
}

// Explicit roles, because browsers do not treat the cards on a phone as a table.
function role(node, name) { node.setAttribute("role", name); return node; }
function scoped(node) { node.scope = "col"; return node; }

// Replace the content of `place`; a focused row keeps the focus.
export function put(place, ...children) {
  const row = place.contains(document.activeElement) ? document.activeElement.closest("tr[data-key]") : null;
  const key = row && row === document.activeElement ? row.dataset.key : null;
  const table = key === null ? null : row.closest("table").caption.textContent;
  place.replaceChildren(...nodes(children));
  if (key === null) return;
  const same = [...place.querySelectorAll("tr[data-key]")].find((each) => each.dataset.key === key && each.closest("table").caption.textContent === table);
  if (same) { for (const each of same.parentNode.children) each.tabIndex = -1; same.tabIndex = 0; same.focus({ preventScroll: true }); }
}

// A part of a view: a heading, a body, and an error message if it cannot be loaded.
export function part(title, ...beside) {
  const heading = el("h2", "", title);
  heading.id = `title-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const trouble = el("p", "bad away"), body = el("div");
  trouble.setAttribute("role", "status");
  const whole = el("section", "", el("div", "row", heading, beside), trouble, body);
  whole.setAttribute("aria-labelledby", heading.id);
  return { whole, heading, trouble, body };
}

export function facts(pairs) {
  return el("dl", "facts", pairs.filter((pair) => pair).flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));
}

export const tag = (mood, ...words) => el("span", `tag ${mood}`, ...words);
export const quiet = (...words) => el("span", "quiet", ...words);
export const empty = (words) => el("p", "quiet", words);

// ---- figures

export const count = (value) => (value === null || value === undefined ? "–" : Math.round(Number(value)).toLocaleString("en"));
export const percent = (ratio) => (ratio === null || ratio === undefined ? "–" : `${(100 * ratio).toFixed(ratio >= 0.0005 && ratio < 0.1 ? 1 : 0)}\u00a0%`);

export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [over, by, letter] of [[1e9, 1e9, "\u00a0G"], [1e6, 1e6, "\u00a0M"], [1e4, 1e3, "\u00a0k"]]) if (Math.abs(value) >= over) return `${(value / by).toFixed(1)}${letter}`;
  return Math.abs(value) >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

// Today's times are shown without the date.
export function when(unixS) {
  const at = new Date(1000 * unixS), today = new Date().toDateString() === at.toDateString();
  return at.toLocaleString("en-GB", today ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "medium" });
}

// Shorten a long id to one line; its tooltip shows the whole id.
export function clipped(node, text) {
  node.classList.add("clipped");
  node.title = text;
  return node;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 120) return `${Math.round(value)}\u00a0s`;
  if (value < 7200) return `${Math.round(value / 60)}\u00a0min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)}\u00a0h` : `${Math.round(value / 86400)}\u00a0days`;
}

// Format a wait; waits below a second in milliseconds.
export function wait(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100) return seconds(value);
  if (value === 0) return "0\u00a0ms";
  return value < 1 ? `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)}\u00a0ms` : `${value.toFixed(1)}\u00a0s`;
}

export const ago = (unixS) => `${seconds(Math.max(0, Date.now() / 1000 - unixS))} ago`;

export const money = (value) => (value === null || value === undefined ? "–" : value !== 0 && Math.abs(value) < 1 ? value.toPrecision(2) : Number(value).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }));
