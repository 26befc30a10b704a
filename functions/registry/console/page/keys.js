// Keyboard: numbers select views, `/` searches, j and k move between rows, Enter opens one, `r` refreshes, `?` helps.
//
// Keys are ignored in input fields and together with Ctrl, Alt or Meta, which are the browser's.

const typing = (node) => node instanceof HTMLElement && (node.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName));

export function listen({ views, go, refresh }) {
  const help = document.getElementById("help");
  const toggle = () => (help.open ? help.close() : help.showModal());
  document.getElementById("help-open").addEventListener("click", toggle);
  document.getElementById("help-close").addEventListener("click", () => help.close());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || document.getElementById("house").hidden) return;
    if (event.key === "Escape" && typing(event.target)) { event.target.blur(); return; }
    if (typing(event.target)) return;
    if (event.key === "?") { event.preventDefault(); toggle(); return; }
    if (document.querySelector("dialog[open]")) return;
    const handled = act(event, views, go, refresh);
    if (handled) event.preventDefault();
  });
}

function act(event, views, go, refresh) {
  const { key } = event;
  if (/^[0-9]$/.test(key)) { const name = views[(Number(key) + 9) % 10]; if (name) go(name); return Boolean(name); }
  if (key === "/") return focusSearch();
  if (key === "r") { refresh(); return true; }
  if (key === "j" || key === "ArrowDown") return walk(1, key);
  if (key === "k" || key === "ArrowUp") return walk(-1, key);
  if (key === "Enter") return open();
  return false;
}

function focusSearch() {
  const field = document.querySelector("#view input[type=search]");
  if (field) { field.focus(); field.select(); }
  return Boolean(field);
}

const rows = () => [...document.querySelectorAll("#view tbody tr[data-key]")].filter((row) => row.offsetParent !== null || row.getClientRects().length);

// Arrows move between rows only if a row has the focus; otherwise they scroll.
function walk(by, key) {
  const all = rows(), at = all.indexOf(document.activeElement.closest ? document.activeElement.closest("tr[data-key]") : null);
  if (!all.length || (at < 0 && key.startsWith("Arrow"))) return false;
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))];
  for (const each of next.parentNode.children) each.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  return true;
}

function open() {
  const row = document.activeElement;
  if (!(row instanceof HTMLTableRowElement)) return false;
  const target = row.querySelector("a, button");
  if (target) target.click();
  return Boolean(target);
}
