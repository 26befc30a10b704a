"""Nodes and zones that fall silent: suspected as a whole, cleared at once, and never suspected for a fault of the
bus.
"""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import ReplicaId
from functions.decisions.health.failure_domains import NOBODY, Member, NodeTrouble, Suspicions, judge

ZONES = {"a": 4, "b": 4, "c": 4}


def fleet(
    heard_s: Mapping[str, float] | None = None, zones: Mapping[str, int] = ZONES, now_s: float = 0.0
) -> list[Member]:
    """Return members of two nodes a zone, heard now or at the time that `heard_s` gives for replica, node or zone."""
    heard = heard_s or {}
    made = []
    for zone, count in zones.items():
        for number in range(count):
            name, node = f"{zone}{number}", f"node-{zone}{number % 2}"
            last_s = heard.get(name, heard.get(node, heard.get(zone, now_s)))
            made.append(Member(ReplicaId(name), node, zone, last_s))
    return made


def looked(
    members: Sequence[Member],
    now_s: float,
    before: Suspicions = NOBODY,
    told: Mapping[str, NodeTrouble] | None = None,
    listening_since_s: float = float("-inf"),
) -> Suspicions:
    return judge(before, members, told or {}, listening_since_s, now_s)


def names(suspicions: Suspicions) -> list[str]:
    return sorted(suspicions.replicas)


def test_worked_example_from_the_prologue() -> None:
    last_s = {"c0": 0.1, "c1": 0.4, "c2": 0.6, "c3": 0.9}
    assert names(looked(fleet(last_s, now_s=3.0), 3.0)) == []
    first = looked(fleet(last_s, now_s=3.5), 3.5)
    assert names(first) == ["c0", "c1", "c2", "c3"]
    assert first.domains == {("zone", "c")}
    then = looked(fleet({**last_s, "c1": 4.9}, now_s=5.0), 5.0, first)
    assert names(then) == ["c0", "c2", "c3"]
    mute = dict.fromkeys("abc", 0.5)
    assert not any(names(looked(fleet(mute), now_s)) for now_s in (3.5, 5.0, 14.0))


def test_a_node_is_suspected_alone() -> None:
    found = looked(fleet({"node-b1": 1.0}, now_s=4.5), 4.5)
    assert names(found) == ["b1", "b3"]
    assert found.domains == {("node", "node-b1")}


def test_one_silent_replica_is_no_lost_node() -> None:
    assert looked(fleet({"b2": 0.0}, now_s=10.0), 10.0) is NOBODY


def test_replicas_silent_one_by_one_are_no_lost_zone() -> None:
    """Each replica has its own reason: they fall silent minutes apart, or during a rolling restart."""
    assert looked(fleet({"c0": 0.0, "c2": 5.0}, now_s=10.0), 10.0) is NOBODY


def test_zone_is_suspected_only_if_half_of_the_silent_replicas_are_its_own() -> None:
    """Every second message is lost: half of each zone is silent, and no zone is suspected."""
    every_second = {f"{zone}{number}": 0.0 for zone in ZONES for number in (0, 2)}
    found = looked(fleet(every_second | {"a1": 0.0, "b1": 0.0}, now_s=4.0), 4.0)
    assert found is NOBODY


def test_silence_is_counted_anew_after_a_bus_pause() -> None:
    """The first heartbeats after the pause come from one zone; the others are not due yet."""
    members = fleet({"b": 0.0, "c": 0.0}, now_s=20.2)
    assert looked(members, 20.2, listening_since_s=20.0) is NOBODY


def test_suspicion_from_before_a_silent_bus_is_dropped() -> None:
    lost = looked(fleet({"c": 0.0}, now_s=4.0), 4.0)
    assert names(lost)
    assert looked(fleet({"c": 0.0, "a": 4.0, "b": 4.0}, now_s=8.0), 8.0, lost) is NOBODY


def test_zone_is_cleared_once_its_silent_replicas_expire() -> None:
    """Two of a zone's three agents are gone for good and expire after 15 s; the third still sends heartbeats."""
    before = looked(fleet({"c0": 0.0, "c1": 0.0}, {"a": 3, "c": 3}, 4.0), 4.0)
    assert names(before) == ["c0", "c1"], "one that is heard in the same moment is not suspected"
    assert looked(fleet(None, {"a": 3, "c": 1}, 16.0), 16.0, before) is NOBODY


def test_not_ready_node_is_suspected_as_a_whole() -> None:
    assert names(looked(fleet(None), 0.0, told={"node-a0": "down"})) == ["a0", "a2"]


def test_unknown_node_loses_only_its_silent_replicas() -> None:
    members = fleet({"a0": 0.0}, now_s=2.0)
    assert names(looked(members, 2.0, told={"node-a0": "unknown"})) == ["a0"]


def test_api_server_that_reports_most_nodes_down_is_ignored() -> None:
    told: dict[str, NodeTrouble] = {f"node-{zone}{number}": "down" for zone in "ab" for number in (0, 1)}
    assert looked(fleet(None), 0.0, told=told) is NOBODY


def test_replicas_without_node_and_zone_are_never_suspected() -> None:
    members = [Member(ReplicaId(f"r{number}"), "", "", 0.0 if number < 3 else 10.0) for number in range(8)]
    assert looked(members, 10.0) is NOBODY


_HEARD = st.lists(st.floats(0.0, 20.0), min_size=1, max_size=14)


@given(_HEARD, st.integers(1, 4), st.floats(0.0, 20.0))
def test_suspicion_always_leaves_heard_replicas(heard_s: list[float], zones: int, pause_s: float) -> None:
    """A replica heard since the suspicion began is clear, so a whole fleet is never suspected."""
    members = [
        Member(ReplicaId(f"r{number}"), f"n{number % (2 * zones)}", f"z{number % zones}", each)
        for number, each in enumerate(heard_s)
    ]
    suspicions = NOBODY
    for now_s in (20.0, 20.5, 21.0, 24.0):
        suspicions = looked(members, now_s, suspicions, listening_since_s=pause_s)
        assert len(suspicions.replicas) < len(members)
        heard_since = {each.replica_id for each in members if each.heard_s >= now_s}
        assert not heard_since & suspicions.replicas.keys()


@given(st.floats(0.0, 1.0), st.lists(st.floats(0.0, 0.99), min_size=12, max_size=12), st.floats(1.0, 40.0))
def test_a_mute_bus_changes_nothing(stopped_s: float, phases: list[float], after_s: float) -> None:
    """All replicas fall silent within a heartbeat of each other: the bus failed, not a zone."""
    names_ = [f"{zone}{number}" for zone, count in ZONES.items() for number in range(count)]
    heard = {name: stopped_s - phase for name, phase in zip(names_, phases, strict=True)}
    suspicions = NOBODY
    for step in range(8):
        now_s = stopped_s + step * after_s / 4
        suspicions = looked(fleet(heard), now_s, suspicions)
        late = [each for each in heard.values() if now_s - each >= 3.0]
        if len(late) in (0, 12):
            assert suspicions is NOBODY
