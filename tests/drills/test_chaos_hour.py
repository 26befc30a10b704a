"""An hour of chaos (`tests/drills/chaos`): no wrong answer, no broken promise, and no operator action.

`SHOAL_CHAOS_MINUTES` sets another length (3 for a trial), `SHOAL_CHAOS_SEED` another order of faults. The test prints
the folder of the report.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.drills.chaos import namespace
from tests.drills.chaos.table import rows

MINUTES = float(os.environ.get("SHOAL_CHAOS_MINUTES", "60"))
SEED = int(os.environ.get("SHOAL_CHAOS_SEED", "14"))
pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(int(MINUTES * 60) + 1800)]

_JUDGED_S = 1800.0  # in shorter lives the growth is that of the start
_GROWTH_MIB_PER_H = 24.0  # a leak of 1 KB a request, at four requests a second, is 14
_OURS = 0.05  # a client that was stalled for a larger share has seen too little


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    if (why := namespace.missing()) is not None:
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    # Postgres runs unprivileged and must pass through the folder, which pytest's own folders do not allow
    folder.chmod(0o711)
    found = namespace.run(folder, MINUTES, SEED)
    print("\n".join(["", *rows(found), f"report: {folder / 'report.json'}"]))
    return found


def test_every_answer_is_whole_or_ends_with_an_error(report: dict[str, Any]) -> None:
    ends = dict(report["ends"])
    assert report["wrong"] == []
    assert sum(count for end, count in ends.items() if end.startswith("ours")) <= _OURS * report["requests"], ends
    assert sum(count for end, count in ends.items() if end.startswith("whole")) >= report["requests"] / 2, ends


def test_no_promise_is_broken(report: dict[str, Any]) -> None:
    assert report["broken_promises"] == []
    assert report["kept"]["batches"] and report["kept"]["files"] and report["kept"]["conversations"], report["kept"]
    if not report["bus_faults"]:  # the bus keeps conversations in memory only
        assert report["kept"]["begun anew"] == 0


def test_accounts_match_what_engines_generated(report: dict[str, Any]) -> None:
    assert all(bill["holds"] for bill in report["bills"]), json.dumps(report["bills"])


def test_everything_recovers_each_time_and_runs_the_branch(report: dict[str, Any]) -> None:
    assert report["amiss"] == [] and report["faults"]
    assert report["left"] == []


def test_memory_is_flat(report: dict[str, Any]) -> None:
    growing = [
        life for life in report["memory"] if life["name"] not in ("s3", "traces")
        and life["lived_s"] >= _JUDGED_S and life["slope_mib_per_h"] > _GROWTH_MIB_PER_H
    ]  # fmt: skip
    assert growing == [], "the object store and the trace store keep what they are given; nobody else does"
