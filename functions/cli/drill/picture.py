"""Picture of a drill's report, as SVG, PNG, or an HTML page with the SVG.

It shows requests, first tokens, alert and effect over time, with marks at the injection and removal of the fault.
"""

import html
import tempfile
from pathlib import Path
from typing import Any

from functions.cli.charts import SUFFIXES, ChartMark, Panel, PictureImpossible, Series, lines

PAGE = ".html"
_LEVEL = {"inactive": 0.0, "pending": 1.0, "firing": 2.0}


def check(path: Path) -> None:
    """Raise PictureImpossible if no picture can be written at `path`."""
    if path.suffix.lower() not in (*SUFFIXES, PAGE):
        raise PictureImpossible(
            f"{path.name} is not a picture: use a name that ends in {', '.join(SUFFIXES)} or {PAGE}"
        )
    if not path.parent.is_dir():
        raise PictureImpossible(f"there is no folder {path.parent}: create it first")


def draw(path: Path, made: dict[str, Any]) -> None:
    check(path)
    if path.suffix.lower() != PAGE:
        _draw(path, made)
        return
    with tempfile.TemporaryDirectory() as folder:
        svg = Path(folder) / "drill.svg"
        _draw(svg, made)
        picture = svg.read_text().partition("<svg")
    title = html.escape(f"shoal drill {made['drill']}")
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<body style="margin:1rem;font-family:sans-serif">{picture[1]}{picture[2]}</body></html>\n'
    )


def _draw(path: Path, made: dict[str, Any]) -> None:
    marks = (
        ChartMark(made["marks"]["injected_s"], "fault"),
        ChartMark(made["marks"]["taken_back_s"], "taken back"),
    )
    at = [second["at_s"] for second in made["seconds"]]
    panels = [
        Panel(
            "Requests a second, by how they ended",
            "1/s",
            [Series(name, at, [second[name] for second in made["seconds"]]) for name in ("whole", "refused", "failed")],
            marks,
        ),
        Panel(
            "First token, p99 of the requests that began in a second",
            "s",
            [Series("first token p99", at, [second["ttft_p99_s"] for second in made["seconds"]])],
            marks,
        ),
        Panel(f"Alert {made['alert']}: 1 pending, 2 firing", "", [_alert(made)], marks, y_max=2.4),
        Panel(
            f"{made['effect']['metric']}: {made['effect']['words']}",
            "",
            [Series("effect", *_columns(made["effect"]["series"]), is_step=True)],
            marks,
        ),
    ]
    note = f"{made['engine']}, {made['replicas']} replicas, alert windows × {made['alert_window_scale']:g}"
    lines(path, f"shoal drill {made['drill']}", panels, note=note)


def _alert(made: dict[str, Any]) -> Series:
    changes = [(at_s, _LEVEL[state]) for at_s, name, state in made["alerts"] if name == made["alert"]]
    points = [(0.0, 0.0), *changes]
    points.append((made["marks"]["ended_s"], points[-1][1]))
    return Series("alert", *_columns(points), is_step=True)


def _columns(points: list[Any]) -> tuple[list[float], list[float | None]]:
    return [point[0] for point in points], [point[1] for point in points]
