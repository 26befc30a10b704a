"""Line charts over time, written as SVG or PNG by the file's suffix, in one or several columns of panels.

`lines()` draws. A `Panel` is one pair of axes, a `Series` one line on it, and a mark a notable moment or level. Panels
of a row share their y axis and panels of a column their x axis, so that neighbours are comparable. A name has one
colour in the whole picture, and the legend shows it once. A value that is None or not finite makes a gap. Long series
are thinned to what a screen can show: each stretch keeps its least and greatest value. matplotlib is imported on use,
because its import is slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
MAX_POINTS = 1_200  # per line: a screen cannot show more, and an SVG stores every point
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A5A5A", "#8C510A")
_WIDE_IN, _COLUMN_IN, _ROW_IN = 8.0, 3.9, 1.75
_STYLES = {"solid": "-", "dashed": "--", "dotted": ":"}


class PictureImpossible(ValueError):
    """The picture cannot be written: wrong file name, missing folder or no panels."""


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    style: Literal["solid", "dashed", "dotted"] = "solid"
    is_step: bool = False  # a value holds until the next one, like a count of replicas


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A notable moment, or a level if `is_level` is set."""

    at: float
    label: str = ""
    is_level: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[ChartMark] = ()
    is_log: bool = False
    y_max: float | None = None  # None means: chosen from the values


def lines(
    path: Path, title: str, panels: Sequence[Panel], *, columns: int = 1, x_label: str = "seconds", note: str = ""
) -> None:
    """Draw the panels, row by row, into the picture file `path`. `note` is one small line at the top right, such as the
    source of the figures."""
    check(path)
    if not panels or columns < 1:
        raise PictureImpossible("a picture needs at least one panel in at least one column")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = ceil(len(panels) / columns)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 8.5, "axes.titlesize": 9}):
        width_in = _WIDE_IN if columns == 1 else 0.6 + _COLUMN_IN * columns
        figure = Figure(figsize=(width_in, 1.1 + _ROW_IN * rows), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, sharex="col", sharey="row", squeeze=False)
        colours = _colours(panels)
        for index, panel in enumerate(panels):
            _draw(grid[index // columns][index % columns], panel, colours, is_first=index % columns == 0)
        for unused in range(len(panels), rows * columns):
            grid[unused // columns][unused % columns].set_visible(False)
        for column in range(columns):
            grid[rows - 1][column].set_xlabel(x_label)
        _frame(figure, title, note, grid)
        figure.savefig(path, dpi=90, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def check(path: Path) -> None:
    """Raise PictureImpossible if no picture can be written at `path`. Call this before a long run."""
    if path.suffix.lower() not in SUFFIXES:
        raise PictureImpossible(f"{path.name} is not a picture: use a name that ends in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise PictureImpossible(f"there is no folder {path.parent}: create it first")


def _colours(panels: Sequence[Panel]) -> dict[str, str]:
    names = dict.fromkeys(series.name for panel in panels for series in panel.series)
    return {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}


def _draw(axes: "Axes", panel: Panel, colours: dict[str, str], *, is_first: bool) -> None:
    axes.set_title(panel.title, loc="left")
    axes.grid(True, color="#E3E3E3", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if is_first:
        axes.set_ylabel(panel.y_label)
    for series in panel.series:
        xs, ys = thinned(series.xs, series.ys)
        axes.plot(
            xs,
            ys,
            label=series.name,
            color=colours[series.name],
            linestyle=_STYLES[series.style],
            linewidth=1.4,
            drawstyle="steps-post" if series.is_step else "default",
        )
    if panel.is_log:
        axes.set_yscale("log")
    elif axes.get_ylim()[0] > 0.0 or all(value >= 0.0 for line in axes.lines for value in _finite(line)):
        axes.set_ylim(bottom=0.0, auto=True)  # a neighbour that is drawn later may raise the upper limit
    if panel.y_max is not None:
        axes.set_ylim(top=panel.y_max)
    for mark in panel.marks:
        _mark(axes, mark)


def _mark(axes: "Axes", mark: ChartMark) -> None:
    look: dict[str, Any] = {"color": "#888888", "linewidth": 0.9, "linestyle": ":"}
    words: dict[str, Any] = {"fontsize": 7, "color": "#555555", "annotation_clip": True}
    if mark.is_level:
        axes.axhline(mark.at, **look)
        axes.annotate(
            mark.label, (0.995, mark.at), xycoords=("axes fraction", "data"), ha="right", va="bottom", **words
        )
    else:
        axes.axvline(mark.at, **look)
        axes.annotate(mark.label, (mark.at, 0.97), xycoords=("data", "axes fraction"), xytext=(3, 0),
                      textcoords="offset points", ha="left", va="top", **words)  # fmt: skip


def _frame(figure: "Figure", title: str, note: str, grid: Any) -> None:
    found: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    figure.suptitle(title, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
    if len(found) > 1:
        handles, names = list(found.values()), list(found)
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(found), 6), frameon=False)
    if note:
        figure.text(0.995, 0.99, note, fontsize=7, color="#555555", ha="right", va="top")


def _finite(line: Any) -> list[float]:
    return [value for value in line.get_ydata() if isfinite(value)]


def thinned(
    xs: Sequence[float], ys: Sequence[float | None], points: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """Return the line with gaps as NaN. A long line keeps the least and greatest value of each stretch, in order."""
    values = [nan if value is None or not isfinite(value) else float(value) for value in ys]
    if len(values) <= points:
        return list(xs), values
    stretch = ceil(2 * len(values) / points)
    kept: list[int] = []
    for start in range(0, len(values), stretch):
        within = range(start, min(start + stretch, len(values)))
        known = [index for index in within if isfinite(values[index])] or list(within)
        kept += sorted({min(known, key=values.__getitem__), max(known, key=values.__getitem__)})
    return [xs[index] for index in kept], [values[index] for index in kept]
