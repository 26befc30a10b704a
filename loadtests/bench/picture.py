"""A run as SVG: one panel per measure, one bar per gateway, and a dashed line at shoal's goal.

Each panel has its own scale, because units differ. The scale ends at 2.2 times the largest figure of shoal and
sglang-router. A longer bar is cut off, and its number shows the value.
"""

from collections.abc import Sequence
from html import escape

from loadtests.bench.figures import GOALS, Goal, Samples, Spread, spread
from loadtests.bench.report import NO_COST, ROWS, Row, cell, value

_PANEL_WIDTH, _BAR_HEIGHT, _GAP, _NAME_WIDTH, _VALUE_WIDTH = 560, 16, 6, 170, 130
_BAR_WIDTH = _PANEL_WIDTH - _NAME_WIDTH - _VALUE_WIDTH
_TITLE_HEIGHT, _MARGIN, _COLUMNS = 30, 24, 2
_LONGEST = 2.2  # times the yardstick; longer bars are cut off
_OWN, _OTHER, _INK, _FAINT, _GOAL = "#0b7285", "#adb5bd", "#212529", "#6c757d", "#c92a2a"


def svg(samples: Samples, contenders: Sequence[str], subtitle: str) -> str:
    names = [name for name in contenders if name != "direct"]
    panels = [_panel(samples, names, row) for row in ROWS if row.figure not in NO_COST]
    drawn = [panel for panel in panels if panel]
    panel_height = _TITLE_HEIGHT + len(names) * (_BAR_HEIGHT + _GAP) + _MARGIN
    rows = -(-len(drawn) // _COLUMNS)
    width, top = _COLUMNS * (_PANEL_WIDTH + _MARGIN) + _MARGIN, 70
    height = top + rows * panel_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_MARGIN, 30, "What a gateway costs", size=20, weight="bold"),
        _text(_MARGIN, 50, subtitle, color=_FAINT),
    ]
    for number, panel in enumerate(drawn):
        x = _MARGIN + number % _COLUMNS * (_PANEL_WIDTH + _MARGIN)
        y = top + number // _COLUMNS * panel_height
        parts.append(f'<g transform="translate({x} {y})">{panel}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(samples: Samples, names: Sequence[str], row: Row) -> str:
    found = {name: value(samples, name, row) for name in names}
    if not any(found.values()):
        return ""
    scale = _scale(found)
    goal = next((goal for goal in GOALS if goal.figure == row.figure), None)
    parts = [_text(0, 14, row.words, weight="bold")]
    for number, (name, figure) in enumerate(found.items()):
        y = _TITLE_HEIGHT + number * (_BAR_HEIGHT + _GAP)
        parts.append(_text(_NAME_WIDTH - 8, y + 12, name, anchor="end"))
        parts += _bar(y, figure, scale, _OWN if name == "shoal" else _OTHER, row.decimals)
    limit = _limit(samples, goal) if goal is not None else None
    if limit is not None and limit <= scale:
        parts.append(_goal_line(_NAME_WIDTH + limit / scale * _BAR_WIDTH, len(names), limit))
    return "".join(parts)


def _scale(found: dict[str, Spread | None]) -> float:
    """Return the value of a bar of full length."""
    yardsticks = [figure.middle for name, figure in found.items() if figure and name.startswith(("shoal", "sglang"))]
    largest = max(figure.middle for figure in found.values() if figure)
    return max(min(largest, _LONGEST * max(yardsticks, default=largest)), 1e-9)


def _bar(y: float, figure: Spread | None, scale: float, color: str, decimals: int) -> list[str]:
    if figure is None:
        return [_text(_NAME_WIDTH, y + 12, "not measured", color=_FAINT)]
    length = min(1.0, figure.middle / scale) * _BAR_WIDTH
    parts = [f'<rect x="{_NAME_WIDTH}" y="{y}" width="{max(length, 1):.1f}" height="{_BAR_HEIGHT}" fill="{color}"/>']
    if figure.middle > scale:  # cut off
        x = _NAME_WIDTH + _BAR_WIDTH - 16
        parts.append(f'<path d="M{x} {y + _BAR_HEIGHT} l8 -{_BAR_HEIGHT} h5 l-8 {_BAR_HEIGHT} z" fill="white"/>')
    elif figure.most > figure.least:
        parts.append(_whisker(y + _BAR_HEIGHT / 2, figure, scale))
    parts.append(_text(_NAME_WIDTH + _BAR_WIDTH + 8, y + 12, cell(figure, decimals), size=11))
    return parts


def _whisker(y: float, figure: Spread, scale: float) -> str:
    left = _NAME_WIDTH + max(0.0, figure.least / scale) * _BAR_WIDTH
    right = _NAME_WIDTH + min(1.0, figure.most / scale) * _BAR_WIDTH
    return f'<path d="M{left:.1f} {y} H{right:.1f}" stroke="{_INK}" stroke-width="1.5"/>'


def _limit(samples: Samples, goal: Goal) -> float | None:
    """Return the goal in the panel's unit."""
    if goal.kind != "ratio":
        return goal.at_most
    peer = spread(samples, goal.peer, goal.figure)
    return goal.at_most * peer.middle if peer is not None else None


def _goal_line(x: float, bars: int, limit: float) -> str:
    bottom = _TITLE_HEIGHT + bars * (_BAR_HEIGHT + _GAP)
    line = f'<path d="M{x:.1f} {_TITLE_HEIGHT - 6} V{bottom}" stroke="{_GOAL}" stroke-dasharray="4 3"/>'
    return line + _text(x, bottom + 9, f"goal {limit:,.3g}", anchor="middle", size=10, color=_GOAL)


def _text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", weight: str = "normal", color: str = _INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{color}">{escape(words)}</text>'
    )
