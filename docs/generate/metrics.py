"""Metrics of every process: families in the source whose name begins with `shoal_`."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from docs.generate.markdown import csv_file, link, page, sentence, slug, table
from docs.generate.source import FUNCTIONS, Site, calls

_ABOUT = (
    "This page is for operators that read dashboards or write alerts. It lists the CSV files that hold every metric: "
    "name, kind, labels, meaning. To find one metric, search the folder: "
    "`grep -r queue_seconds docs/reference/metrics`. [On call](../how-to/on-call.md) says which metrics to check "
    "first, and [Alerts](alerts.md) lists the shipped alerts.\n\n"
    "Counters are exposed with `_total`, histograms as `_bucket`, `_sum` and `_count`. No histogram has a label for "
    "the tenant."
)
_HEAD = ("metric", "kind", "labels", "meaning")
_PROCESSES = {
    "gateway": ("Gateway", "`GET /metrics` on a port of its own: `SHOAL_GATEWAY_METRICS_PORT`, 8445 locally"),
    "registry": ("Registry", "`GET /metrics` on its port; `shoal_rollout_stage` only with the internal token"),
    "replica": ("Agent", "`GET /metrics` on its port: 8480 and up locally"),
    "replica/adapter_cache": ("Adapter cache", "`GET /metrics` on its port"),
    "controller": ("Controller, Kubernetes", "`GET /metrics` on port 8447"),
}
_KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}
_MAKERS = {*_KINDS, *(f"{name}{suffix}" for name in _KINDS for suffix in ("Family", "MetricFamily")), "_gauge"}


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


@cache
def families(process: str) -> list[Family]:
    """Return the families of `functions/<process>`, sorted by name."""
    inner = [FUNCTIONS / other for other in _PROCESSES if other.startswith(f"{process}/")]
    found = {family.name: family for site in calls(FUNCTIONS / process, _MAKERS, inner) for family in _declared(site)}
    return sorted(found.values(), key=lambda family: family.name)


def metrics_files() -> dict[str, str]:
    """Return the page and one CSV file for each process."""
    rows = [
        (title, where, link(file_of(process)), str(len(families(process))))
        for process, (title, where) in _PROCESSES.items()
    ]
    text = page("Metrics", _ABOUT, table(("process", "exposed at", "file", "metrics"), rows))
    return {"metrics.md": text, **{file_of(process): csv_file(_HEAD, _rows(process)) for process in _PROCESSES}}


def file_of(process: str) -> str:
    """Return the path of the process's CSV file below docs/reference."""
    return f"metrics/{slug(_PROCESSES[process][0])}.csv"


def _rows(process: str) -> list[tuple[str, str, str, str]]:
    return [(one.name, one.kind, ", ".join(one.labels), sentence(one.meaning)) for one in families(process)]


def _declared(site: Site) -> Iterator[Family]:
    kind = _kind(site.name)
    names, meanings = site.texts(site.argument(0, "name")), site.texts(site.argument(1, "documentation"))
    if kind and names and meanings and names[0].startswith("shoal_"):
        yield _family(names[0], kind, _labels(site), meanings[0])
    elif kind and not names:
        yield from _of_a_table(site, kind)


def _family(name: str, kind: str, labels: tuple[str, ...], meaning: str) -> Family:
    exposed = f"{name.removesuffix('_total')}_total" if kind == "counter" else name
    return Family(exposed, kind, labels, meaning)


def _kind(called: str) -> str:
    name = called.removesuffix("Family").removesuffix("Metric")
    return "gauge" if called == "_gauge" else _KINDS.get(name, "")


def _labels(site: Site) -> tuple[str, ...]:
    value = site.argument(2, "labels", "labelnames")
    if isinstance(value, ast.Name):
        given = [
            node.value
            for node in ast.walk(site.function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == value.id
        ]
        value = given[0] if given else None
    if not isinstance(value, ast.List | ast.Tuple):
        return ()
    return tuple(str(one.value) for one in value.elts if isinstance(one, ast.Constant))


def _of_a_table(site: Site, kind: str) -> Iterator[Family]:
    """Yield the families of a table {"shoal_name": ("meaning", value)} that one call declares."""
    for node in ast.walk(site.function):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name = key.value if isinstance(key, ast.Constant) else ""
                if str(name).startswith("shoal_") and isinstance(value, ast.Tuple):
                    yield _family(str(name), kind, _labels(site), site.texts(value.elts[0])[0])
