"""Rules, dashboards and runbooks agree with each other and with the metrics of the processes."""

import json
import re
from collections.abc import Iterator

import pytest

from docs.generate.metrics import families
from docs.generate.source import ROOT
from functions.telemetry.alerting import RUNBOOKS, alerts, recorded
from functions.telemetry.alerting.dashboards import files, short_form

_PROCESSES = ("gateway", "registry", "replica", "controller")
_OF_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate", "failure_mode", "severity"}}
_EVERYWHERE = {"job", "instance"}
_PARTS = ("_bucket", "_count", "_sum")
_NAME = re.compile(r"(?<![\w:\"=~.])(shoal[_:][\w:]+|up|ALERTS)(?![\w:(])(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_SHORT_DIRECTORY = ROOT / RUNBOOKS


def known_labels() -> dict[str, set[str]]:
    """Labels by name of a series, for metrics declared in code and series recorded by rules."""
    found: dict[str, set[str]] = {}
    for process in _PROCESSES:
        for family in families(process):
            found.setdefault(family.name, set(_EVERYWHERE)).update(family.labels)
            if family.kind == "histogram":
                for part in _PARTS:
                    more = {"le"} if part == "_bucket" else set()
                    found.setdefault(family.name + part, set(_EVERYWHERE)).update({*family.labels, *more})
    found |= _OF_PROMETHEUS
    for rule in recorded():
        by = re.search(r"\bby \(([^)]*)\)", rule.expr)
        found[rule.name] = ({each.strip() for each in by[1].split(",")} if by else set()) - {"le"}
    return found


def wrong(expr: str, known: dict[str, set[str]]) -> Iterator[str]:
    """Yield unknown names, labels that a series lacks, and grouping labels that no series of the expression has."""
    anywhere: set[str] = set()
    for name, matchers in _NAME.findall(expr):
        if name not in known:
            yield f"there is no {name}"
            continue
        anywhere |= known[name]
        yield from (f"{name} has no label {label}" for label in _MATCHER.findall(matchers) if label not in known[name])
    for grouping in _GROUPING.findall(re.sub(r"\"[^\"]*\"", '""', expr)):
        labels = {each.strip() for each in grouping.split(",") if each.strip()}
        yield from (f"nothing here has a label {label}" for label in sorted(labels - anywhere))


def queries() -> list[tuple[str, str]]:
    rules = [(each.name, each.expr) for each in (*alerts(), *recorded())]
    panels = [
        (f"{row.get('mode') or row['title']}: {panel['title']}", panel["expr"])
        for dashboard in short_form().values()
        for row in dashboard["rows"]
        for panel in row["panels"]
    ]
    return rules + panels


def test_every_query_uses_existing_series_and_labels() -> None:
    known = known_labels()
    found = {name: problems for name, expr in queries() if (problems := list(wrong(expr, known)))}
    assert found == {}
    assert len(queries()) > 80


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("rate(shoal_request_total[5m])", "there is no shoal_request_total"),
        ('shoal_ttft_seconds_bucket{model="a"}', "shoal_ttft_seconds_bucket has no label model"),
        ("sum by (tenant) (rate(shoal_requests_total[5m]))", "nothing here has a label tenant"),
        ("shoal:no_such_rule > 1", "there is no shoal:no_such_rule"),
    ],
)
def test_query_of_a_missing_series_is_detected(expr: str, says: str) -> None:
    assert list(wrong(expr, known_labels())) == [says]


def test_labels_of_panels_are_those_of_their_series() -> None:
    known = known_labels()
    for dashboard in short_form().values():
        for row in dashboard["rows"]:
            for panel in row["panels"]:
                used = set(re.findall(r"\{\{(\w+)\}\}", panel["legend"]))
                had = set().union(*(known[name] for name, _ in _NAME.findall(panel["expr"])))
                assert used <= had, panel["title"]


def test_each_failure_mode_has_its_alert_its_row_and_its_runbook() -> None:
    modes = {alert.failure_mode for alert in alerts()}
    rows = {row["mode"] for row in short_form()["failure-modes"]["rows"]}
    pages = {page.stem for page in _SHORT_DIRECTORY.glob("*.md")} - {"README"}
    assert (rows, pages) == (modes, modes)
    wanted = (
        *("kv-exhaustion", "head-of-line-prefill", "cold-start-storm", "routing-thrash", "noisy-tenant"),
        *("cascade-escalates-everything", "version-drift", "replica-crash", "slow-replica", "accelerator-error"),
        *("node-loss", "zone-loss", "bad-version", "overload", "registry-away", "bus-away", "store-away"),
        "controller-away",
    )
    assert set(wanted) <= modes


def test_a_runbook_names_its_alerts_and_the_index_has_them_all() -> None:
    index = (_SHORT_DIRECTORY / "README.md").read_text()
    for alert in alerts():
        assert f"`{alert.name}`" in (ROOT / alert.runbook).read_text(), alert.runbook
        assert f"`{alert.name}`" in index


def test_nothing_pages_by_a_label_that_a_client_can_grow() -> None:
    grown = {"tenant", "key", "session", "user", "request_id", "adapter"}
    assert [family.name for process in _PROCESSES for family in families(process) if grown & set(family.labels)] == []


def test_dashboard_panels_do_not_overlap() -> None:
    for text in files().values():
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(text)["panels"]:
            grid = panel["gridPos"]
            cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
            assert not cells & taken and grid["x"] + grid["w"] <= 24, panel["title"]
            taken |= cells
