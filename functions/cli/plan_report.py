"""Everything that `shoal plan` found, for people and machines alike."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from functions.controller.gitops.changes import Change
from functions.simulator.plan.comparison import Compared
from functions.simulator.plan.figures import Key
from functions.simulator.plan.slos import Promise, Verdict
from functions.simulator.plan.unsimulated import Unsimulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    base: str
    candidate: str
    changes: tuple[Change, ...]
    engine_changes: tuple[str, ...]  # of engines' arguments, which the snapshot does not have
    unsimulated: tuple[Unsimulated, ...]
    traffic: str
    traffic_is_made_up: bool
    played: str
    engines: tuple[str, ...]
    notes: tuple[str, ...]
    compared: Mapping[Key, Compared] = field(default_factory=dict)
    promises: tuple[Promise, ...] = ()
    verdict: Verdict = "same"

    @property
    def refuses(self) -> bool:
        return self.verdict == "breaks"


def as_json(report: Report) -> dict[str, Any]:
    return {
        "base": report.base,
        "candidate": report.candidate,
        "verdict": report.verdict,
        "changes": [asdict_change(change) for change in report.changes],
        "engine_changes": list(report.engine_changes),
        "not_simulated": [asdict(each) for each in report.unsimulated],
        "traffic": report.traffic,
        "traffic_is_made_up": report.traffic_is_made_up,
        "played": report.played,
        "engines": list(report.engines),
        "notes": list(report.notes),
        "promises": [asdict(each) for each in report.promises],
        "figures": [_figure(key, compared) for key, compared in report.compared.items()],
    }


def asdict_change(change: Change) -> dict[str, str]:
    return {"kind": change.kind, "name": change.name, "verb": change.verb, "words": change.words}


def _figure(key: Key, compared: Compared) -> dict[str, Any]:
    difference = compared.difference
    return {
        "pool": key.pool,
        "class": key.band,
        "figure": key.figure,
        "unit": compared.figure.unit,
        "before": compared.before,
        "after": compared.after,
        "difference": difference.mean if difference is not None else None,
        "low": difference.low if difference is not None else None,
        "high": difference.high if difference is not None else None,
        "marked": compared.marked,
    }
