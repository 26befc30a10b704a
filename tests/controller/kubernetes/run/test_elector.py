"""Leader election on a real Lease: one leads, another takes over, and a leader stopped past its term writes nothing."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from functions.controller.kubernetes.errors import LeadershipLost
from functions.controller.kubernetes.run.election import LeaseTiming
from functions.controller.kubernetes.run.elector import Elector
from functions.controller.kubernetes.run.lease import LeaseClient, LeaseTaken
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.run.waiting import until

pytestmark = pytest.mark.servers

TIMING = LeaseTiming(lease_s=60.0, renew_deadline_s=40.0, retry_s=0.2)
InThread = Callable[[Callable[[], None], Callable[[], None]], None]


class Clock:
    """A local clock that a test moves; like a machine's, it advances while a process is stopped."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s


class Candidate(Elector):
    def __init__(self, space: Space, name: str, clock: Clock, **more: Any) -> None:
        self.clock = clock
        self.changes = 0
        client = LeaseClient(space.client.client, space.system, "shoal-controller", TIMING)
        super().__init__(client, name, self._changed, clock=clock, **more)

    def _changed(self) -> None:
        self.changes += 1


def lease_of(space: Space) -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{space.system}/leases/shoal-controller"
    answer = space.client.request("get", path, serializer=lambda _client, data: data)
    return dict(answer)["spec"]


def test_first_candidate_leads_and_renews_while_the_second_waits(plain_space: Space) -> None:
    first = Candidate(plain_space, "first", Clock(1000.0))
    second = Candidate(plain_space, "second", Clock(-5.0))
    first.step()
    second.step()
    guard = first.guard()
    assert guard is not None
    assert second.guard() is None
    assert second.leader == "first"
    guard.check()
    first.clock.now_s += 35  # a request waits no longer than the term lasts: here for all of its 5 s
    first.step()
    first.clock.now_s += 35
    guard.check()
    assert guard.token == 1, "renewing is the same term"
    assert first.changes == 1


def test_a_leader_that_was_stopped_beyond_its_term_writes_nothing(plain_space: Space) -> None:
    first, second = (Candidate(plain_space, name, Clock(0.0)) for name in ("first", "second"))
    first.step()
    second.step()
    old = first.guard()
    assert old is not None
    second.clock.now_s += 60
    second.step()
    new = second.guard()
    assert new is not None
    assert new.token > old.token
    first.clock.now_s += 60  # it wakes
    with pytest.raises(LeadershipLost):
        old.check()
    assert old.remaining_s() <= 0
    first.step()
    assert first.guard() is None
    assert first.leader == "second"


def test_expired_term_of_the_same_process_is_not_revived(plain_space: Space) -> None:
    only = Candidate(plain_space, "only", Clock(0.0))
    only.step()
    old = only.guard()
    assert old is not None
    only.clock.now_s += 41
    only.step()
    new = only.guard()
    assert new is not None
    assert new.token > old.token
    new.check()
    with pytest.raises(LeadershipLost):
        old.check()


def test_released_lease_is_acquired_at_once(plain_space: Space) -> None:
    first, second = (Candidate(plain_space, name, Clock(0.0)) for name in ("first", "second"))
    first.step()
    second.step()
    first.stop()
    assert first.guard() is None, "from here on nothing is written"
    first.run()
    first.release_lease()
    second.step()
    guard = second.guard()
    assert guard is not None
    assert guard.token == 2


def test_deleted_lease_restarts_above_every_known_token(plain_space: Space) -> None:
    elector = Candidate(plain_space, "first", Clock(0.0), lowest_token=lambda: 41)
    elector.step()
    guard = elector.guard()
    assert guard is not None
    assert guard.token == 42


def test_outranked_leader_starts_a_new_term_above_the_registrys_token(plain_space: Space) -> None:
    """An installation recreated beside its old database would be refused for ever."""
    elector, other = (Candidate(plain_space, name, Clock(0.0)) for name in ("first", "second"))
    elector.step()
    for highest in (0, 41):
        elector.end_outranked_term(highest)
    assert elector.guard() is None, "nothing is written under a number that is refused"
    other.end_outranked_term(90)  # it does not lead, so nothing changes
    other.step()
    elector.step()
    guard = elector.guard()
    assert guard is not None
    assert (guard.token, other.guard()) == (42, None)
    assert lease_of(plain_space)["holderIdentity"] == "first"


def test_second_write_over_the_same_record_is_refused(plain_space: Space) -> None:
    client = LeaseClient(plain_space.client.client, plain_space.system, "shoal-controller", TIMING)
    record = client.create("first", 0, 10)
    with pytest.raises(LeaseTaken):
        client.create("second", 0, 10)
    client.replace("second", record, 1, 10)
    with pytest.raises(LeaseTaken):
        client.replace("third", record, 1, 10)
    assert lease_of(plain_space)["holderIdentity"] == "second"


def test_acquire_time_stays_through_renewals(plain_space: Space) -> None:
    client = LeaseClient(plain_space.client.client, plain_space.system, "shoal-controller", TIMING)
    record = client.create("first", 0, 10)
    before = lease_of(plain_space)
    client.replace("first", record, 0, 10)
    after = lease_of(plain_space)
    assert after["acquireTime"] == before["acquireTime"]
    assert after["renewTime"] > before["renewTime"]


def test_unreachable_server_does_not_end_the_term_early(plain_space: Space) -> None:
    first = Candidate(plain_space, "first", Clock(0.0))
    first.step()
    guard = first.guard()
    assert guard is not None
    plain_space.server.stop()
    try:
        first.clock.now_s += 10
        first.step()
        assert "Lease" in first.problem or "leases" in first.problem
        guard.check()
        first.clock.now_s += 30
        with pytest.raises(LeadershipLost):
            guard.check()
    finally:
        plain_space.server.start_again()
    until(lambda: first.step() or first.guard(), "it leads again")
    assert json.dumps(first.problem) == '""'


def test_one_of_two_running_candidates_leads(plain_space: Space, in_thread: InThread) -> None:
    candidates = [Candidate(plain_space, name, Clock(0.0)) for name in ("first", "second")]
    for candidate in candidates:
        in_thread(candidate.run, candidate.stop)
    until(lambda: any(candidate.guard() for candidate in candidates), "somebody leads")
    until(lambda: all(candidate.leader for candidate in candidates), "both know who")
    assert [candidate.guard() is not None for candidate in candidates].count(True) == 1
