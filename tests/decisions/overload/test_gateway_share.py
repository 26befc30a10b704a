"""Overload ladder of one gateway before simulated engines, in virtual time: batch gives way and recovers fully."""

from random import Random

import pytest

from functions.api.ids import TenantId
from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.decisions.admission.queue import Admission, Refuse
from functions.decisions.admission.ticket import BANDS, Ticket
from functions.decisions.overload.gateway_share import LOOK_S, QueueLadder, shiftable_ratio
from functions.decisions.overload.ladder import OFF, RUNGS, LadderState, Rungs
from loadtests.fairness.traffic import chats
from loadtests.fairness.virtual import Shape, VirtualFleet, VirtualRequest

POLICY = AdmissionEntry(
    "p",
    ("*",),
    (
        BandEntry("interactive", 0.6, ttft_slo_ms=500),
        BandEntry("near-real-time", 0.3, 2_000),
        BandEntry("batch", 0.1, max_wait_ms=1_000),
    ),
)
FLOOD_S, END_S = 15.0, 60.0
INTERACTIVE, BATCH = BANDS.index("interactive"), BANDS.index("batch")


class Laddered(VirtualFleet):
    """A virtual fleet that updates its ladder at every sweep."""

    def __init__(self, shape: Shape, spare_ratio: float = 0.0) -> None:
        super().__init__(shape, POLICY)
        self.ladder = QueueLadder()
        self.seen: list[tuple[float, Rungs]] = []
        self._spare_ratio = spare_ratio

    def _sweep(self, now_s: float) -> None:
        assert self.admission is not None
        self.seen.append((now_s, self.ladder.update_rungs(self.admission, now_s, shiftable_ratio=self._spare_ratio)))
        super()._sweep(now_s)


def spike(times: int) -> list[VirtualRequest]:
    """Ten chats and six batch requests a second; from 5 s to 15 s `times` as many chats. An engine serves 30."""
    rng = Random(f"spike {times}")
    asked = chats("one", 10.0, END_S, rng) + chats("two", 6.0, END_S, rng, band=BATCH)
    if times > 1:
        flood = chats("three", 10.0 * (times - 1), FLOOD_S - 5.0, rng)
        for each in flood:
            each.at_s += 5.0
        asked += flood
    return sorted(asked, key=lambda each: each.at_s)


@pytest.fixture(scope="module")
def flooded() -> tuple[Laddered, list[VirtualRequest]]:
    fleet = Laddered(Shape(replicas=1), spare_ratio=0.3)
    return fleet, fleet.run(spike(8), END_S)


def test_rungs_turn_on_in_order_during_the_flood_and_off_after_it(
    flooded: tuple[Laddered, list[VirtualRequest]],
) -> None:
    fleet, _ = flooded
    first = {rung: next((at_s for at_s, rungs in fleet.seen if rung in rungs.on), None) for rung in RUNGS}
    assert first["shed"] is not None and first["shift"] is not None
    assert 5.0 < first["shed"] < first["shift"] < FLOOD_S
    assert first["borrow"] is None and first["provision"] is None  # a gateway has no warm replica to borrow
    assert fleet.seen[-1][1] == OFF
    assert fleet.admission is not None and fleet.admission.kept_ratios is None


def test_batch_is_shed_before_chats(flooded: tuple[Laddered, list[VirtualRequest]]) -> None:
    _, found = flooded
    shed = [each for each in found if each.refused is not None and each.refused.reason == "low_band"]
    assert shed
    assert {each.band for each in shed} == {BATCH}
    assert all(each.at_s < FLOOD_S + 15.0 for each in shed)


def test_batch_never_starves(flooded: tuple[Laddered, list[VirtualRequest]]) -> None:
    _, found = flooded
    batch = [each for each in found if each.band == BATCH and 6.0 < each.at_s < FLOOD_S]
    served = [each for each in batch if each.ttft_s is not None]
    assert served
    assert len(served) < len(batch)


def test_a_pool_that_keeps_up_never_climbs() -> None:
    fleet = Laddered(Shape(replicas=2), spare_ratio=1.0)
    found = fleet.run(spike(1), 30.0)
    assert all(rungs == OFF for _, rungs in fleet.seen)
    assert not any(each.refused for each in found)


def ticket(number: int, band: int, weight: float = 1.0, tenant: str = "t") -> Ticket:
    return Ticket(number, TenantId(tenant), weight, band, 100, 200, 300, 1e9, 0.0, content=b"%d" % number)


def test_shed_refuses_a_random_share_of_long_waits_and_never_interactive() -> None:
    admission = Admission(POLICY, 0.0)
    admission.kept_ratios = (1.0, 1.0, 0.05)
    assert admission.arrive(ticket(1, BATCH), 0.0) == "dispatch"
    admission.gate.request_limit, admission.gate.easy_requests = 1, 0.5
    assert admission.arrive(ticket(300, BATCH), 0.0) == "wait"
    verdicts = [admission.arrive(ticket(number, BATCH), 0.6) for number in range(2, 202)]
    refused = [verdict for verdict in verdicts if isinstance(verdict, Refuse)]
    assert {refusal.reason for refusal in refused} == {"low_band"}
    assert len(refused) == pytest.approx(190, abs=4)
    assert admission.queues[BATCH].refused == 0  # refusals by the ladder are no sign of strain
    assert admission.arrive(ticket(301, INTERACTIVE, tenant="u"), 0.6) == "wait"


def test_shed_shortens_the_wait_of_light_tenants() -> None:
    """2.1 s of work wait and 3 s are allowed: enough for the heavy tenant, too much for the light one."""
    verdicts = {}
    for kept in (None, (1.0, 1.0, 1.0)):
        admission = Admission(POLICY, 0.0)
        admission.gate.replicas, admission.gate.request_limit, admission.gate.easy_requests = 1, 1, 0.5
        admission.drain.per_replica, admission.drain.has_been_full = 1_000.0, True
        admission.heaviest, admission.kept_ratios = 8.0, kept
        for number in range(1, 8):  # the first runs, six wait: 300 each
            admission.arrive(ticket(number, INTERACTIVE, 8.0, "heavy"), 0.0)
        newcomer = ticket(8, INTERACTIVE, 1.0, "light")
        newcomer.deadline_s = 3.0
        verdicts[kept is None] = admission.arrive(newcomer, 0.0)
    refused = verdicts[False]
    assert verdicts[True] == "wait"
    assert isinstance(refused, Refuse) and refused.reason == "saturated"


def test_no_request_is_shifted_while_the_pool_has_room() -> None:
    admission, ladder = Admission(POLICY, 0.0), QueueLadder()
    ladder.rungs = Rungs(("shed", "shift"), shift_ratio=0.4)
    admission.gate.request_limit = 10
    assert ladder.shift_ratio(admission) == 0.0
    admission.gate.running = 9
    assert ladder.shift_ratio(admission) == 0.4


def test_ladder_updates_at_most_once_per_interval() -> None:
    admission, ladder = Admission(POLICY, 0.0), QueueLadder()
    ladder.update_rungs(admission, 0.0)
    ladder.update_rungs(admission, LOOK_S)
    state = ladder.state
    ladder.update_rungs(admission, 1.5 * LOOK_S)
    assert ladder.state is state
    ladder.update_rungs(admission, 2.0 * LOOK_S)
    assert ladder.state is not state


def test_only_pools_with_room_receive_shifted_requests() -> None:
    assert shiftable_ratio([]) == 0.0
    assert shiftable_ratio([0.1]) == 1.0
    assert shiftable_ratio([0.1, 0.7]) == pytest.approx(0.5), "each of them gets some tier's"
    assert shiftable_ratio([0.9]) == 0.0


def test_rate_measured_too_low_is_corrected() -> None:
    """A rate measured with cold caches is too low: arrivals look twice as high, and half of them are shifted."""
    admission, ladder = Admission(POLICY, 0.0), QueueLadder()
    admission.gate.replicas = 1
    admission.drain.per_replica, admission.drain.has_been_full = 1_000.0, True
    ladder.state = LadderState(level=2, tokens_per_s=2_000.0, seen_s=0.0)
    shifted = []
    for look in range(60):
        admission.queues[INTERACTIVE].arrived_cost += 1_000
        shifted.append(ladder.update_rungs(admission, look * LOOK_S, shiftable_ratio=1.0).shift_ratio)
    assert max(shifted) > 0.3
    assert shifted[-1] == 0.0


def test_batch_that_waits_does_not_keep_the_rate_low() -> None:
    """After a stall of the engine, batch requests still wait within their limit while a third of the pool is in use."""
    patient = AdmissionEntry(
        "p", ("*",), (BandEntry("interactive", 0.9, ttft_slo_ms=500), BandEntry("batch", 0.1, max_wait_ms=600_000))
    )
    admission, ladder = Admission(patient, 0.0), QueueLadder()
    admission.gate.replicas, admission.gate.request_limit, admission.gate.easy_requests = 1, 1, 0.5
    assert admission.arrive(ticket(1, INTERACTIVE), 0.0) == "dispatch"
    assert admission.arrive(ticket(2, BATCH), 0.0) == "wait"
    admission.gate.request_limit = 3
    admission.drain.per_replica, admission.drain.has_been_full = 100.0, True
    ladder.state = LadderState(level=1, tokens_per_s=400.0, seen_s=0.0)
    seen = []
    for look in range(120):
        admission.queues[INTERACTIVE].arrived_cost += 200
        seen.append(ladder.update_rungs(admission, look * LOOK_S))
    assert admission.waiting == 1
    assert "shed" in seen[10].on
    assert seen[-1] == OFF
