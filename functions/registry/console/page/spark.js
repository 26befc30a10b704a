// Sparklines: one figure of one pool over the window, as inline SVG. A gap in the series is a gap in the line.
//
// Colour is never the only sign: the last value is shown as text, and the range is in the label.
import { el, svg } from "./dom.js";

const WIDTH = 120, HEIGHT = 28, EDGE = 2;

export function spark(name, values, format, ceiling = null) {
  const known = values.filter((value) => value !== null);
  const last = known.length ? values[values.length - 1] ?? known[known.length - 1] : null;
  const most = known.length ? Math.max(...known) : 0, least = known.length ? Math.min(...known) : 0;
  const words = known.length ? `${name}: ${format(last)} now, between ${format(least)} and ${format(most)}` : `${name}: not known`;
  const line = drawn(values, ceiling ?? most, words);
  return el("div", "spark", el("span", "spark-name", name), el("span", "spark-now", format(last)), line, el("span", "spark-most", known.length ? `max ${format(most)}` : "not known"));
}

function drawn(values, ceiling, words) {
  const scale = (HEIGHT - 2 * EDGE) / (ceiling || 1), step = (WIDTH - 2 * EDGE) / Math.max(1, values.length - 1);
  const point = (value, at) => [EDGE + at * step, HEIGHT - EDGE - Math.min(value, ceiling || value) * scale];
  const lines = runs(values).map((run) => {
    const points = run.map(([value, at]) => point(value, at).map((each) => each.toFixed(1)).join(",")).join(" ");
    if (run.length === 1) { const [x, y] = point(...run[0]); return svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 1.5 }); }
    return svg("polyline", { points });
  });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words, preserveAspectRatio: "none" },
    svg("title", {}, words), svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - EDGE, y2: HEIGHT - EDGE, class: "ground" }), ...lines);
  return picture;
}

// Consecutive known values, each with its index.
function runs(values) {
  const found = [];
  let run = null;
  values.forEach((value, at) => {
    if (value === null) { run = null; return; }
    if (run === null) found.push(run = []);
    run.push([value, at]);
  });
  return found;
}

// A share as a bar and as text. Above 1 the bar is full, and the text has the value.
export function bar(ratio, words, mood = "") {
  const shown = Math.max(0, Math.min(1, ratio || 0));
  const picture = svg("svg", { viewBox: "0 0 100 6", class: `bar ${mood}`, "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("rect", { x: 0, y: 0, width: 100, height: 6, class: "bar-whole" }), svg("rect", { x: 0, y: 0, width: (100 * shown).toFixed(2), height: 6, class: "bar-part" }));
  return el("span", "barred", picture, el("span", "", words));
}
