"""`replicas.min: 0` in a plan: an idle pool costs nothing; the first request waits, goes elsewhere or is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from functions.controller.gitops.changes import compiled
from functions.simulator.fleet.start_times import StartSource
from functions.simulator.plan.declarations import declarations_of
from functions.simulator.plan.experiment import Played, play
from functions.simulator.plan.figures import Key
from functions.simulator.plan.notes import notes_of
from functions.simulator.plan.planned_fleet import PlannedFleet, fleet_of
from functions.simulator.plan.traffic import PlanTraffic, models_by_pool, recorded
from functions.telemetry.trace_row import encode
from tests.controller.configs import load, tier
from tests.simulator.plan.configs import pool, routing, tenant
from tests.telemetry.test_traces import row

TWO_BURSTS = (*(3.0 * at for at in range(10)), *(1200.0 + 3.0 * at for at in range(10)))
START_S = 22.7  # start time from disk


def scaled(name: str, least: int, idle_after: str = "5m") -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {name}}}
spec: {{pool: {name}, replicas: {{min: {least}, max: 1}}, idleAfter: {idle_after}}}
"""


def planned(*documents: str) -> PlannedFleet:
    loaded = load(*documents, tier("standard"), tenant("acme", "standard"))
    return fleet_of(compiled(loaded, {}), declarations_of(loaded))


def asking(
    folder: Path,
    at_s: Sequence[float],
    start: StartSource = "disk",
    band: str = "interactive",
    other_s: Sequence[float] = (),
) -> PlanTraffic:
    rows = [
        row(
            f"r{number}", ts=1e9 + each, tenant_id="acme", model_id=model, adapter_id="", pool=model, session_id="",
            prompt_tokens=500, completion_tokens=50, class_=band,
        )
        for number, (each, model) in enumerate([(s, "m") for s in at_s] + [(s, "other") for s in other_s])
    ]  # fmt: skip
    (folder / "requests-1.ndjson").write_bytes(b"".join(encode(each) + b"\n" for each in rows))
    return replace(recorded(folder, 1, 1000), start=start)


def played(before: PlannedFleet, after: PlannedFleet, traffic: PlanTraffic) -> Played:
    return play(before, after, replace(traffic, models=models_by_pool(before, after)), lambda words: None)


def test_pool_at_zero_costs_nothing_and_first_requests_wait_for_a_start(tmp_path: Path) -> None:
    found = played(planned(pool("m"), scaled("m", 1)), planned(pool("m"), scaled("m", 0)), asking(tmp_path, TWO_BURSTS))
    hours = found.compared[Key("m", "", "accelerator_hours")]
    assert hours.before == pytest.approx(1227 / 3600, rel=0.01)
    asleep_s = 1200 - 27 - 300  # between the bursts, less idleAfter
    assert hours.after == pytest.approx((1227 - asleep_s) / 3600, rel=0.06)
    waited = found.compared[Key("m", "", "wake_ratio")]
    assert (waited.before, waited.after) == (0.0, pytest.approx(8 / 20, abs=0.06)), "those of the first 23 s of ten"
    late = found.compared[Key("m", "interactive", "ttft_p99_ms")].after
    assert late == pytest.approx(1000 * START_S, rel=0.15), "by its first token, not by the comment that it waits"
    assert found.compared[Key("m", "interactive", "shed_ratio")].after == 0.0


def test_request_is_refused_if_a_start_takes_longer_than_it_may_wait(tmp_path: Path) -> None:
    traffic = asking(tmp_path, TWO_BURSTS, "cold")
    found = played(planned(pool("m"), scaled("m", 1)), planned(pool("m"), scaled("m", 0)), traffic)
    shed = found.compared[Key("m", "interactive", "shed_ratio")]
    assert (shed.before, shed.after) == (0.0, 0.5), "all of the second burst"
    assert found.compared[Key("m", "interactive", "lost_ratio")].after == 0.0


def test_pool_without_early_requests_begins_at_zero(tmp_path: Path) -> None:
    """The pool is started by its first request alone."""
    fleet = planned(pool("m"), pool("other"), scaled("other", 0))
    traffic = asking(tmp_path, [0.0, 1.0, 630.0], other_s=[600.0, 601.0, 630.0])
    found = played(fleet, fleet, traffic)
    assert found.compared[Key("other", "", "wake_ratio")].after == pytest.approx(2 / 3)
    assert found.compared[Key("other", "interactive", "shed_ratio")].after == 0.0
    assert found.compared[Key("other", "", "accelerator_hours")].after == pytest.approx(30 / 3600, rel=0.05)


def test_while_one_pool_starts_another_of_its_model_answers(tmp_path: Path) -> None:
    rule = routing("{when: {classes: [batch]}, to: m-spot}")
    spot = pool("m-spot", model="m", spot=True)
    before, after = (planned(pool("m"), spot, scaled("m-spot", least), rule) for least in (1, 0))
    found = played(before, after, asking(tmp_path, TWO_BURSTS, band="batch"))
    here = found.compared[Key("m-spot", "batch", "here_ratio")]
    assert here.before == 1.0
    assert here.after == pytest.approx(12 / 20, abs=0.06), "without those of the second burst's first 23 s"
    assert (found.compared[Key("m", "batch", "ttft_p99_ms")].after or 1e9) < 1000, "and none of those waits for it"
    hours = found.compared[Key("m-spot", "", "accelerator_hours")]
    assert (hours.after or 1.0) < 0.5 * (hours.before or 0.0)


def test_notes_say_what_a_window_cannot_show(tmp_path: Path) -> None:
    fleet = planned(pool("m"), scaled("m", 0, "30m"))
    traffic = asking(tmp_path, [0.0, 1.0, 2.0], "cold")
    said = list(notes_of(played(fleet, fleet, traffic), traffic, 1))
    assert "no window is long enough for m to go to zero after its idleAfter; more --requests make it longer" in said
    assert any(note.startswith("m may go to zero: a start takes 346 s there (--start") for note in said)
