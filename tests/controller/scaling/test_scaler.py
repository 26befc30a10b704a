"""The scaler applies policy and ladder, and remembers the sizes of an earlier controller."""

from dataclasses import replace

import pytest
from msgspec import structs

from functions.api.ids import PoolName
from functions.api.snapshot import AdmissionEntry, AutoscalingEntry, BandEntry
from functions.controller.autoscaling.scaler import DECIDE_EVERY_S, DesiredSize, Scaler
from functions.fleet.pool_board import PoolReport, PoolSum
from tests.controller.scaling.builders import IDLE, POOL, replica, report

ENTRY = AutoscalingEntry(
    name="scaled",
    pool=PoolName(POOL),
    min_replicas=1,
    max_replicas=6,
    warm=1,
    scale_up=("queue_seconds > 0.5: +2",),
    scale_down=("utilization < 40% for 60s: -1",),
)
ADMISSION = AdmissionEntry("all", ("*",), (BandEntry("interactive", 0.6, ttft_slo_ms=500),))
FULL = PoolSum(2, 10.0, 20_000.0, 0.0, 0.0, 0.8, 9000, 0.4, 0.9, 0.05)
TWO = (replica(0), replica(1))


def decide(
    scaler: Scaler, heard: PoolReport | None, now_s: float, entry: AutoscalingEntry = ENTRY
) -> DesiredSize | None:
    return scaler.step(heard, [entry], [ADMISSION], {POOL: 2}, now_s).get(POOL)


def test_pool_without_reports_keeps_its_size() -> None:
    assert decide(Scaler("disk"), None, 0.0) is None
    assert decide(Scaler("disk"), report(*TWO, connected=False), 0.0) is None


def test_pool_continues_from_the_requested_size() -> None:
    # a restarted controller gets heartbeats of one replica of two
    wanted = decide(Scaler("disk"), report(replica(0)), 0.0)
    assert wanted is not None
    assert (wanted.replicas, wanted.warm, wanted.cause) == (2, 1, "steady")


def test_matching_rule_is_applied_with_its_reason() -> None:
    wanted = decide(Scaler("disk"), report(*TWO, told=FULL), 0.0)
    assert wanted is not None
    assert (wanted.replicas, wanted.cause) == (4, "rule")
    assert "queue_seconds" in wanted.reason


def test_scaler_decides_periodically_and_at_once_for_a_new_policy() -> None:
    scaler = Scaler("disk")
    assert decide(scaler, report(*TWO), 0.0).replicas == 2  # type: ignore[union-attr]
    assert decide(scaler, report(*TWO, told=FULL), 1.0).replicas == 2  # type: ignore[union-attr]
    another = structs.replace(ENTRY, max_replicas=3)
    assert decide(scaler, report(*TWO, told=FULL), 2.0, another).replicas == 3  # type: ignore[union-attr]
    later = decide(Scaler("disk"), report(*TWO, told=FULL), DECIDE_EVERY_S)
    assert later is not None and later.replicas == 4


def test_since_is_when_the_number_changed() -> None:
    scaler = Scaler("disk")
    decide(scaler, report(*TWO), 100.0)
    decide(scaler, report(*TWO), 130.0)
    wanted = decide(scaler, report(*TWO), 160.0)
    assert wanted is not None and wanted.since_unix_s == 100.0
    grown = decide(scaler, report(*TWO, told=FULL), 190.0)
    assert grown is not None and grown.since_unix_s == 190.0


def test_restarted_scaler_removes_nothing_for_a_while() -> None:
    scaler = Scaler("disk")
    sizes = []
    for now_s in range(0, 400, 10):
        wanted = decide(scaler, report(*TWO), float(now_s))
        sizes.append(wanted.replicas if wanted is not None else 0)
    assert sizes[:30] == [2] * 30
    assert sizes[-1] == 1, "nobody asks anything of it"


FOUR = tuple(replica(number, running=8, decode_tokens_per_s=20.0) for number in range(4))
CALM = replace(IDLE, arrivals_per_s=4.0, arriving_tokens_per_s=2000.0, ttft_p50_s=0.1, ttft_p99_s=0.2, gap_p99_s=0.05)


@pytest.mark.parametrize("speeds", [{}, {POOL: 100.0}])
def test_a_full_pool_keeps_its_size_through_a_restart(speeds: dict[str, float]) -> None:
    """Eight requests at each replica all day, and a new controller, with and without the former one's stored speeds."""
    scaler = Scaler("disk", speeds)
    sizes = set()
    for now_s in range(0, 3600, 5):
        wanted = scaler.step(report(*FOUR, told=CALM), [ENTRY], [ADMISSION], {POOL: 4}, float(now_s))[POOL]
        sizes.add(wanted.replicas)
    assert min(sizes) == 4
    assert scaler.speeds() == speeds


def test_single_stream_speed_can_be_stored() -> None:
    scaler = Scaler("disk", {"another": 50.0})
    for now_s in range(7):
        decide(scaler, report(replica(0), replica(1, running=1, decode_tokens_per_s=80.0)), float(now_s))
    assert scaler.speeds() == {"another": 50.0, POOL: 80.0}


def test_scaler_starts_a_pool_with_its_first_report() -> None:
    """Before that, it is unknown which of the requested replicas are warm."""
    scaler = Scaler("cold")
    assert scaler.step(None, [ENTRY], [ADMISSION], {POOL: 6}, 0.0) == {}
    assert decide(scaler, report(*TWO), 1.0).replicas == 2  # type: ignore[union-attr]


def test_old_signals_change_no_size() -> None:
    scaler = Scaler("disk")
    decide(scaler, report(*TWO), 0.0)
    wanted = decide(scaler, None, 100.0)
    assert wanted is not None
    assert (wanted.replicas, wanted.cause) == (2, "blind")


def test_overload_promotes_warm_replicas_despite_the_rules() -> None:
    """Interactive requests wait longer than allowed, and the ladder has no other step."""
    scaler = Scaler("disk")
    quiet = structs.replace(ENTRY, scale_up=())
    heartbeats = (*TWO, replica(2, "warm"))
    drowning = replace(FULL, queue_s=30.0, shed_per_s=5.0, overflow_per_s=5.0)
    steps = [decide(scaler, report(*heartbeats, told=drowning), float(second), quiet) for second in range(60)]
    last = steps[-1]
    assert last is not None
    assert last.replicas > 2
    assert "borrow" in last.rungs
    calm = decide(scaler, report(*TWO, replica(2), told=IDLE), 61.0, quiet)
    assert calm is not None and calm.replicas == last.replicas, "what was added goes by the scaler's rules, later"


def test_overload_promotes_no_sleeper_that_cannot_wake() -> None:
    quiet = structs.replace(ENTRY, scale_up=())
    drowning = replace(FULL, queue_s=30.0, shed_per_s=5.0, overflow_per_s=5.0)
    heartbeats = report(*TWO, replica(2, "warm", asleep=True), told=drowning)
    means = {}
    for resting in (0, 1):
        scaler = Scaler("disk")
        for second in range(60):
            scaler.step(heartbeats, [quiet], [ADMISSION], {POOL: 2}, float(second), resting={POOL: resting})
        wanted = scaler.step(heartbeats, [quiet], [ADMISSION], {POOL: 2}, 60.0, resting={POOL: resting})[POOL]
        means[resting] = "borrow" in wanted.rungs
    assert means == {0: True, 1: False}


def test_pool_without_a_policy_is_not_scaled() -> None:
    scaler = Scaler("disk")
    decide(scaler, report(*TWO), 0.0)
    assert scaler.step(report(*TWO), [], [], {POOL: 2}, 1.0) == {}


def test_nearly_idle_pool_ignores_signals_no_replica_would_improve() -> None:
    """Adapters that cannot be loaded are refused, batch requests wait and are refused, and no other request waits."""
    scaler = Scaler("disk")
    heartbeats = (*TWO, replica(2, "warm"))
    odd = replace(IDLE, arrivals_per_s=1.0, arriving_tokens_per_s=500.0, shed_per_s=0.1, queued_tokens=200_000)
    steps = [decide(scaler, report(*heartbeats, told=odd), float(second)) for second in range(600)]
    known = [wanted for wanted in steps if wanted is not None]
    assert max(wanted.replicas for wanted in known) == 2
    assert {wanted.rungs for wanted in known} == {()}


ZERO = structs.replace(ENTRY, min_replicas=0, warm=0)


def zero(scaler: Scaler, heard: PoolReport, now_s: float) -> DesiredSize:
    wanted = scaler.step(heard, [ZERO], [ADMISSION], {POOL: 0}, now_s).get(POOL)
    assert wanted is not None
    return wanted


def test_pool_at_zero_starts_in_the_pass_that_finds_a_waiting_request() -> None:
    scaler = Scaler("disk")
    assert zero(scaler, report(), 0.0).replicas == 0
    asked = replace(FULL, waking=5, queue_s=0.0, queued_tokens=0)
    started = zero(scaler, report(told=asked), 1.0)
    assert (started.replicas, started.cause) == (1, "demand"), "not at the next decision, and not by the ladder"
    for now_s in range(2, 60):
        assert zero(scaler, report(replica(0, "starting"), told=asked), float(now_s)).replicas == 1


def test_the_last_cold_start_is_kept_for_a_pool_that_is_at_zero_again() -> None:
    scaler = Scaler("disk")
    slow = structs.replace(replica(0), cold_start={"imports": 40.0, "weights": 2.0})
    zero(scaler, report(slow), 0.0)
    assert zero(scaler, report(), 1.0).cold_start == {"imports": 40.0, "weights": 2.0}
