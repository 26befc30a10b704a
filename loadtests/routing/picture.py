"""The comparison as SVG: one panel per run, one bar per router for its p99, and a mark at its median."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from studies.routers.live import LiveRouterName

_WIDTH, _BAR, _GAP, _NAMES, _VALUES, _MARGIN, _TITLE = 640, 18, 8, 120, 150, 24, 34
_OWN, _OTHER, _INK = "#0b7285", "#adb5bd", "#212529"


def svg(runs: Sequence[tuple[str, Mapping[LiveRouterName, Mapping[str, Any]]]]) -> str:
    """Return the SVG. `runs` are pairs of a title and each router's figures (`report.figures`)."""
    parts, top = list[str](), _MARGIN
    for title, routers in runs:
        parts += _panel(title, routers, top)
        top += _TITLE + len(routers) * (_BAR + _GAP) + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}" '
        f'font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{top}" fill="white"/>', *parts, "</svg>\n"])


def _panel(title: str, routers: Mapping[LiveRouterName, Mapping[str, Any]], top: int) -> list[str]:
    longest = max((each["ttft_p99_ms"] for each in routers.values()), default=0.0) or 1.0
    scale = (_WIDTH - _NAMES - _VALUES - 2 * _MARGIN) / longest
    lines = [_text(_MARGIN, top + 14, f"{title}: time to first token, p99 (bar) and p50 (mark)", "bold")]
    for number, (router, each) in enumerate(routers.items()):
        y, x = top + _TITLE + number * (_BAR + _GAP), _MARGIN + _NAMES
        width, mark = each["ttft_p99_ms"] * scale, each["ttft_p50_ms"] * scale
        color = _OWN if router == "shoal" else _OTHER
        lines += [
            _text(_MARGIN, y + 13, router),
            f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{color}"/>',
            f'<rect x="{x + mark:.1f}" y="{y}" width="2" height="{_BAR}" fill="{_INK}"/>',
            _text(x + width + 6, y + 13, f"{each['ttft_p99_ms']:.0f} / {each['ttft_p50_ms']:.0f} ms"),
        ]
    return lines


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{_INK}" font-weight="{weight}">{escape(text)}</text>'
