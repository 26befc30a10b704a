"""Whatever happens between two requests, the next controller converges: no orphan, no second writer, no needless write.

Each test kills (or stops and succeeds) a controller at every single request of a reconcile that creates a pool,
changes one, hands one to the autoscaler and deletes one; then a fresh controller, which knows only what is on the
cluster, goes on. The process-level twin with `kill -9` is in `run/`.
"""

from contextlib import suppress
from functools import partial

import pytest
from kubernetes.dynamic.exceptions import NotFoundError

from functions.controller.kubernetes.errors import LeadershipLost, Retryable
from functions.controller.kubernetes.inventory import InventoryRecord
from functions.controller.kubernetes.ownership import declares
from functions.controller.kubernetes.render import Desired
from tests.controller.kubernetes.crashes import InterruptedClient, killed_at_each_call
from tests.controller.kubernetes.fixtures import Space, make_space
from tests.controller.kubernetes.fleet import Fleet, Leader, autoscaling, pool
from tests.controller.kubernetes.kserve_double import KServe
from tests.soak import every

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

BEFORE = (pool("kept"), pool("changed", args="--old"), pool("handed", replicas=3), pool("dropped"))
AFTER = (pool("kept"), pool("changed", args="--new"), pool("handed", replicas=3), autoscaling("handed"), pool("made"))


@pytest.fixture
def fleet(space: Space) -> Fleet:
    return Fleet(space)


def assert_is_as_desired(fleet: Fleet, desired: Desired) -> None:
    """Check that the cluster holds exactly the desired objects of ours, and that the inventory lists all of them."""
    for each in desired.objects:
        found = fleet.service(each.ref.name) if each.ref.kind == "InferenceService" else fleet.budget(each.ref.name)
        assert found is not None, each.ref
        assert declares(found, "shoal-controller")
    assert fleet.service("dropped") is None
    assert fleet.budget("dropped") is None
    assert fleet.replicas("handed") == 3
    record: InventoryRecord = fleet.store.read()
    assert {entry.ref for entry in record.entries} == {each.ref for each in desired.objects}
    assert all(entry.uid for entry in record.entries)
    assert record.last_applied == desired.revision
    before = fleet.api.counts.writes
    assert fleet.applier.reconcile(desired).notes == ()
    assert fleet.api.counts.writes == before


def converge(fleet: Fleet, *documents: str) -> None:
    fleet.converge(fleet.desired(*documents))


@pytest.mark.soak
@pytest.mark.parametrize("every", [1], ids=["each"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_request_of_a_reconcile(fleet: Fleet, after: bool, every: int) -> None:
    prepare = partial(converge, fleet, *BEFORE)
    calls = []
    wanted = partial(fleet.desired, *AFTER)
    for call, desired in killed_at_each_call(fleet, prepare, wanted, after=after, every=every):
        fleet.converge(desired)
        assert_is_as_desired(fleet, desired)
        calls.append(call)
    assert calls[-1] > 25


@every(9)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_request_of_the_first_install(space: Space, after: bool, every: int) -> None:
    fleet, calls = Fleet(space), []

    def on_a_fresh_cluster() -> None:
        fleet.space = make_space(space.server)
        fleet.kserve = KServe(fleet.space.client, fleet.space.models)

    documents = (pool("a"), autoscaling("a"))
    wanted = partial(fleet.desired, *documents)
    for call, desired in killed_at_each_call(fleet, on_a_fresh_cluster, wanted, after=after, every=every):
        fleet.converge(desired)
        record = fleet.store.read()
        assert {entry.ref for entry in record.entries} == {each.ref for each in desired.objects}
        assert record.last_applied == desired.revision
        calls.append(call)
    assert calls[-1] > 10


@every(6)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_recreated_service_can_be_pruned_after_a_crash(fleet: Fleet, after: bool, every: int) -> None:
    """A person deletes a service, the controller recreates it and dies, and the next revision no longer has it."""
    documents = (pool("kept"), pool("dropped"))
    same = fleet.desired(*documents)

    def deleted_behind_our_back() -> None:
        fleet.converge(same)
        fleet.delete("dropped")

    for _ in killed_at_each_call(fleet, deleted_behind_our_back, lambda: same, after=after, every=every):
        outcome = fleet.converge(fleet.desired(pool("kept")))
        assert fleet.service("dropped") is None
        assert outcome.notes == ()


@pytest.mark.soak
@pytest.mark.parametrize("every", [1], ids=["each"])
def test_overtaken_leader_undoes_nothing_at_any_request(fleet: Fleet, every: int) -> None:
    """The old leader is stopped before a request, a new one applies the newer revision, the old one goes on.

    Its guard is blind (it always says yes), so only what the API server enforces holds it: uid and resourceVersion in
    each body, and the token in the record. Nothing that the new leader wrote may be changed by it. One thing cannot be
    bound to a version, a creation: that one may come through late, and is reported as a stranger."""
    newer = (pool("kept", args="--newer"), pool("changed", args="--newer"), pool("handed", replicas=4), pool("newer"))
    overtaken = True
    call = 2  # before the first request, it would simply find the newer record
    while overtaken:
        overtaken = False
        token = 10 * call
        fleet.restart(Leader(token))
        fleet.converge(fleet.desired(*BEFORE))
        successor = Fleet(fleet.space, guard=Leader(token + 1))
        successor.kserve = fleet.kserve
        latest = successor.desired(*newer)

        def overtake(successor: Fleet = successor, latest: Desired = latest) -> None:
            nonlocal overtaken
            overtaken = True
            successor.converge(latest)

        client = InterruptedClient(fleet.space.client, call, overtake)
        fleet.make_client = lambda client=client: client
        fleet.restart()
        with suppress(Retryable, LeadershipLost):
            fleet.applier.reconcile(fleet.desired(*AFTER))
        fleet.make_client = None
        if not overtaken:
            break
        outcome = successor.applier.reconcile(latest)
        assert outcome.written == (), f"overtaken before request {call}"
        fleet.restart(Leader(token))
        with pytest.raises(LeadershipLost):
            fleet.applier.reconcile(fleet.desired(*AFTER))
        assert {note.ref.name for note in outcome.notes} <= {"made"}
        with suppress(NotFoundError):
            fleet.delete("made")
        call += every
    assert call > 25


def test_lost_leadership_stops_every_write(space: Space) -> None:
    class Follower(Leader):
        def check(self) -> None:
            raise LeadershipLost("another leads")

    fleet = Fleet(space, guard=Follower())
    with pytest.raises(LeadershipLost):
        fleet.push(pool("a"))
    assert fleet.api.counts.writes == 0
    assert fleet.service("a") is None
    assert fleet.record() is None


def test_write_is_not_started_too_late_in_the_term(space: Space) -> None:
    class AtTheEndOfItsTerm(Leader):
        def remaining_s(self) -> float:
            return 0.1

    fleet = Fleet(space, guard=AtTheEndOfItsTerm())
    with pytest.raises(LeadershipLost, match="not sent, since"):
        fleet.push(pool("a"))
    assert fleet.record() is None


@pytest.mark.soak
@pytest.mark.parametrize("call", [6, 14, 20])
def test_the_api_server_restarts_in_the_middle(fleet: Fleet, call: int) -> None:
    fleet.converge(fleet.desired(*BEFORE))
    desired = fleet.desired(*AFTER)
    server = fleet.space.server
    client = InterruptedClient(fleet.space.client, call, lambda: server.stop(kill=True))
    fleet.make_client = lambda: client
    fleet.restart()
    try:
        for _ in range(2):
            with pytest.raises(Retryable):
                fleet.applier.reconcile(desired)
    finally:
        server.start_again()
    fleet.converge(desired)  # the same controller and client: nothing restarts with the server
    fleet.make_client = None
    fleet.restart()
    assert_is_as_desired(fleet, desired)
