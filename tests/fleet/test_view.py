"""The fleet view: later heartbeats win, silence and evidence exclude replicas, and memory is bounded."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.health.ejection import EJECTION_BASE_S, FAULTS_MAX
from functions.decisions.routing.replicas import PoolIndex, ReplicaView
from functions.fleet import view as views
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat, Pulse, decode_line, pulse_of, to_view
from functions.fleet.view import NOTED_FOR_S, WITHDRAWN_FOR_S, FleetView
from tests.fleet.builders import beat

BASE, OTHER = PoolName("base"), PoolName("other")
R0, R1 = ReplicaId("r0"), ReplicaId("r1")


def view_of(*beats: Heartbeat, now_s: float = 0.0) -> FleetView:
    view = FleetView()
    for each in beats:
        view.fold(each, now_s)
    return view


def ids(view: FleetView, pool: PoolName = BASE) -> list[str]:
    return [replica.id for replica in view.pool(pool).replicas]


def others_speak(view: FleetView, seconds: int) -> None:
    """Send a heartbeat of r0 every second."""
    for second in range(1, seconds):
        view.fold(beat(sequence=1 + second), float(second))


def test_a_pool_holds_its_replicas_by_id() -> None:
    view = view_of(beat(replica_id="b"), beat(replica_id="a"), beat(replica_id="c", pool="other"))
    assert (ids(view), ids(view, OTHER), ids(view, PoolName("none"))) == (["a", "b"], ["c"], [])


@pytest.mark.parametrize(
    ("later", "taken"),
    [
        ({"sequence": 6}, True),
        ({"sequence": 5}, False),
        ({"sequence": 4}, False),
        ({"sequence": 0, "incarnation": 1001}, True),
        ({"sequence": 99, "incarnation": 999}, False),
    ],
)
def test_only_a_later_beat_counts(later: dict[str, int], taken: bool) -> None:
    view = view_of(beat(sequence=5, running=1))
    assert view.fold(beat(running=2, **later), 1.0) is taken
    assert view.pool(BASE).replicas[0].running == (2 if taken else 1)


def test_a_view_once_taken_does_not_change() -> None:
    view = view_of(beat())
    before = view.pool(BASE)
    view.fold(beat(sequence=2, running=9), 1.0)
    assert before.replicas[0].running == 0
    assert view.pool(BASE).replicas[0].running == 9


def test_between_beats_the_same_view_is_given() -> None:
    view = view_of(beat())
    assert view.pool(BASE) is view.pool(BASE)


def test_a_replica_that_moves_leaves_its_former_pool() -> None:
    view = view_of(beat(), beat(sequence=2, pool="other"))
    assert (ids(view), ids(view, OTHER)) == ([], ["r0"])


def test_silence_takes_a_replica_out_and_a_beat_brings_it_back() -> None:
    view = view_of(beat(), beat(replica_id="r1"))
    others_speak(view, 16)
    assert view.expire(SILENCE_LIMIT_S) == {}
    assert view.expire(SILENCE_LIMIT_S + 0.1) == {R1: "ready"}
    assert (ids(view), view.replica(R1)) == (["r0"], None)
    assert view.fold(beat(replica_id="r1"), 20.0)
    assert ids(view) == ["r0", "r1"]


def test_fleet_wide_pause_resets_silence() -> None:
    """Otherwise the first replica heard after the pause would be the only one and get all requests."""
    view = view_of(beat(), beat(replica_id="r1"), beat(replica_id="r2"))
    assert view.expire(60.0) == {} and view.expiry.is_fleets
    view.fold(beat(sequence=2), 60.0)
    view.fold(beat(replica_id="r1", sequence=2), 60.0)
    assert view.expire(60.1) == {} and not view.expiry.doubted
    assert ids(view) == ["r0", "r1", "r2"]


def test_a_stale_beat_does_not_keep_a_replica_alive() -> None:
    view = view_of(beat(sequence=5), beat(replica_id="r1"))
    for second in range(1, 16):
        view.fold(beat(sequence=5), float(second))
        view.fold(beat(replica_id="r1", sequence=1 + second), float(second))
    assert list(view.expire(SILENCE_LIMIT_S + 0.1)) == [R0]


def test_a_beat_does_not_end_an_ejection_but_a_new_agent_does() -> None:
    view = view_of(beat(), beat(replica_id="r1"))
    view.eject(R0, 0.0)
    view.fold(beat(sequence=2), 1.0)
    assert view.ejected(BASE, 1.0) == {R0}
    view.fold(beat(sequence=0, incarnation=2000), 2.0)
    assert view.ejected(BASE, 2.0) == frozenset()


def test_answer_ends_an_ejection_unless_sent_before_it() -> None:
    view = view_of(beat(), beat(replica_id="r1"))
    view.eject(R0, 10.0)
    view.record_answer(R0, 9.0, 11.0)
    assert view.ejected(BASE, 11.0) == {R0}
    view.record_answer(R0, 11.0, 12.0)
    assert view.ejected(BASE, 12.0) == frozenset()


def test_after_an_ejection_one_probe_goes_at_a_time() -> None:
    view = view_of(beat(), beat(replica_id="r1"))
    view.eject(R0, 0.0)
    assert view.ejected(BASE, EJECTION_BASE_S) == frozenset()
    view.record_sent(R0, EJECTION_BASE_S)
    assert view.ejected(BASE, EJECTION_BASE_S) == {R0}
    view.record_sent(R1, EJECTION_BASE_S)
    assert view.ejected(BASE, EJECTION_BASE_S) == {R0}, "whoever was never out needs no probe"


def test_faults_in_a_row_take_a_replica_out() -> None:
    view = view_of(beat(), beat(replica_id="r1"))
    assert [view.record_fault(R0, 0.0) for _ in range(FAULTS_MAX)] == [0.0] * (FAULTS_MAX - 1) + [EJECTION_BASE_S]


def test_a_refusal_makes_it_look_slower() -> None:
    view = view_of(beat(), beat(replica_id="r1"))
    view.record_refusal(R0, 0.0)
    status = view.outlier_status(BASE, 0.5)
    assert (status.out, list(status.penalties_ms), status.panic) == (frozenset(), [R0], False)


def test_a_pool_never_loses_its_last_ready_replica_to_ejection() -> None:
    view = view_of(beat(), beat(replica_id="r1"), beat(replica_id="r2", phase="draining"))
    view.eject(R0, 0.0)
    assert view.ejected(BASE, 0.0) == {R0}
    view.eject(R1, 0.0)
    assert view.ejected(BASE, 0.0) == frozenset()
    assert view.outlier_status(BASE, 0.0).panic


def test_evidence_about_an_unknown_replica_is_ignored() -> None:
    view, who = view_of(beat()), ReplicaId("who")
    assert view.eject(who, 0.0) == view.record_fault(who, 0.0) == 0.0
    view.record_refusal(who, 0.0)
    view.record_sent(who, 0.0)
    view.record_first_token(who, 0.0, 1.0, 10)
    view.record_answer(who, 0.0, 1.0)
    assert view.outlier_status(BASE, 0.0).out == frozenset()


def test_outlier_replica_is_ejected_for_a_while() -> None:
    view = view_of(*(beat(replica_id=f"r{n}") for n in range(6)))
    view.eject_outliers(0.0)
    for n in range(6):
        for _ in range(30):
            view.record_first_token(ReplicaId(f"r{n}"), 1.0, 9.0 if n == 3 else 1.5, 100)
            view.record_answer(ReplicaId(f"r{n}"), 1.0, 10.0)
    assert view.eject_outliers(5.0) == [], "once an interval"
    assert view.eject_outliers(10.0) == [ReplicaId("r3")]
    assert view.ejected(BASE, 10.0) == {ReplicaId("r3")}


def test_fleet_view_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_REPLICAS", 3)
    view = view_of(*(beat(replica_id=f"r{n}") for n in range(5)))
    assert ids(view) == ["r0", "r1", "r2"]
    assert view.fold(beat(replica_id="r1", sequence=2), 0.0), "those who are known stay welcome"


def test_every_beat_is_shown_with_when_it_came() -> None:
    view = FleetView()
    view.fold(beat(replica_id="b"), 1.0)
    view.fold(beat(replica_id="a"), 2.0)
    assert [(it.replica_id, seen_s) for it, seen_s in view.heartbeats()] == [("a", 2.0), ("b", 1.0)]


steps = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 9)), max_size=60)


@settings(deadline=None)
@given(steps, st.integers(0, 1000))
def test_last_heartbeat_of_each_replica_wins_in_any_order(said: list[tuple[int, int, int]], seed: int) -> None:
    beats = [
        beat(replica_id=f"r{who}", pool=("base", "other")[pool], sequence=sequence, running=sequence)
        for who, pool, sequence in {(who, sequence): (who, pool, sequence) for who, pool, sequence in said}.values()
    ]
    shuffled = random.Random(seed).sample(beats, len(beats))
    last = {each.replica_id: each for each in sorted(beats, key=lambda it: it.sequence)}
    view = view_of(*shuffled)
    for pool in (BASE, OTHER):
        assert_index_of(view, pool)
        assert ids(view, pool) == sorted(name for name, each in last.items() if each.pool == pool)
        assert all(it.running == last[it.id].sequence for it in view.pool(pool).replicas)


def test_an_adapter_that_an_agent_just_loaded_is_known_before_its_beats_say_so() -> None:
    view = FleetView()
    view.fold(beat(sequence=1, adapters=("a@1",)), 0.0)
    view.note_adapter(ReplicaId("r0"), EngineName("b@1"), 0.0)
    assert adapters(view) == {"a@1", "b@1"}
    known = view.replica(ReplicaId("r0"))
    assert known is not None and hash(known), "a view is frozen, also with what was noted: no set has a hash"
    view.fold(beat(sequence=2, adapters=("a@1",)), 0.5)
    assert adapters(view) == {"a@1", "b@1"}, "that beat was on its way already"
    view.fold(beat(sequence=3, adapters=("a@1", "b@1")), 1.5)
    view.fold(beat(sequence=4, adapters=("a@1",)), 2.5)
    assert adapters(view) == {"a@1"}, "once a beat has said so, beats are believed"


def test_unconfirmed_adapter_is_forgotten() -> None:
    view = FleetView()
    view.fold(beat(sequence=1), 0.0)
    view.note_adapter(ReplicaId("r0"), EngineName("b@1"), 0.0)
    view.note_adapter(ReplicaId("r0"), EngineName("c@1"), 1.0)
    view.fold(beat(sequence=2), NOTED_FOR_S + 0.5)
    assert adapters(view) == {"c@1"}
    view.fold(beat(sequence=1, incarnation=2000), NOTED_FOR_S + 0.6)
    assert adapters(view) == set(), "a new agent begins anew"


def test_an_adapter_that_the_engine_does_not_know_is_taken_back() -> None:
    view = FleetView()
    view.fold(beat(sequence=1, adapters=("a@1",)), 0.0)
    for name in ("b@1", "c@1"):
        view.note_adapter(ReplicaId("r0"), EngineName(name), 0.0)
    view.retract_adapter(ReplicaId("r0"), EngineName("b@1"))
    view.retract_adapter(ReplicaId("r0"), EngineName("a@1"))
    assert adapters(view) == {"a@1", "c@1"}, "what a beat says is for the next beat to change"
    view.note_adapter(ReplicaId("nobody"), EngineName("b@1"), 0.0)


def test_noted_adapters_are_bounded() -> None:
    view = FleetView()
    view.fold(beat(sequence=1), 0.0)
    for number in range(1000):
        view.note_adapter(ReplicaId("r0"), EngineName(f"a@{number}"), 0.0)
    assert len(adapters(view)) == 256


def test_requested_adapter_takes_room_until_the_next_heartbeat() -> None:
    view = view_of(beat(sequence=1, adapter_room=2))
    rooms = []
    for _ in range(3):
        view.reserve_adapter_slot(R0)
        rooms.append(known(view).adapter_room)
    view.note_adapter(R0, EngineName("b@1"), 0.0)
    assert (rooms, known(view).adapter_room) == ([1, 0, 0], 0)
    view.fold(beat(sequence=2, adapter_room=2), 1.0)
    assert known(view).adapter_room == 2
    view.reserve_adapter_slot(ReplicaId("nobody"))


def test_withdrawn_adapter_is_remembered_while_loaded() -> None:
    view = view_of(beat(sequence=1, adapters=("a@1", "b@1")))
    view.fold(beat(sequence=2, adapters=("a@1",)), 1.0)
    assert known(view).withdrawn == {"b@1"}
    view.fold(beat(sequence=3), 2.0)
    assert known(view).withdrawn == {"a@1", "b@1"}
    view.note_adapter(R0, EngineName("a@1"), 2.5)
    assert (known(view).adapters, known(view).withdrawn) == ({"a@1"}, {"b@1"})
    view.fold(beat(sequence=4, adapters=("a@1",)), 1.0 + WITHDRAWN_FOR_S)
    assert known(view).withdrawn == set()


def test_dead_engine_or_new_agent_clears_withdrawn_adapters() -> None:
    view = view_of(beat(sequence=1, adapters=("a@1",)))
    view.fold(beat(sequence=2, phase="dead"), 0.5)
    assert known(view).withdrawn == set()
    view = view_of(beat(sequence=1, adapters=("a@1", "b@1")))
    view.fold(beat(sequence=2, adapters=("a@1",)), 0.5)
    view.fold(beat(sequence=1, incarnation=2000, adapters=()), 0.6)
    assert known(view).withdrawn == set()


def test_withdrawn_adapters_are_bounded() -> None:
    view = view_of(beat(sequence=1, adapters=tuple(f"a@{number}" for number in range(1000))))
    view.fold(beat(sequence=2), 0.5)
    assert len(known(view).withdrawn) == 256


def known(view: FleetView) -> ReplicaView:
    replica = view.replica(R0)
    assert replica is not None and view.pool(replica.pool).replicas == (replica,)
    return replica


def adapters(view: FleetView) -> set[str]:
    replica = view.replica(ReplicaId("r0"))
    assert replica is not None and view.pool(replica.pool).replicas == (replica,)
    return set(replica.adapters)


def assert_index_of(view: FleetView, pool: PoolName) -> None:
    """Check that the incrementally updated index equals a rebuilt one."""
    kept, anew = view.index(pool), PoolIndex(view.pool(pool).replicas)
    assert (kept.known, kept.rows, kept.ready, kept.holders) == (anew.known, anew.rows, anew.ready, anew.holders)
    assert kept.utilization_ratio == pytest.approx(anew.utilization_ratio, abs=1e-9)


lives = st.lists(
    st.tuples(
        st.sampled_from(["beat", "beat", "beat", "expire", "note", "retract"]),
        st.integers(0, 4),
        st.sampled_from(["ready", "draining", "starting"]),
        st.sets(st.sampled_from(["a@1", "b@1", "c@1"])),
        st.tuples(st.integers(0, 9), st.floats(0.0, 1.0), st.sampled_from(["base", "other"])),
    ),
    max_size=50,
)


@settings(deadline=None)
@given(lives)
def test_index_equals_a_rebuilt_one_after_any_change(
    steps: list[tuple[str, int, str, set[str], tuple[int, float, str]]],
) -> None:
    view, now_s = FleetView(), 0.0
    for sequence, (what, who, phase, names, (running, usage, pool)) in enumerate(steps):
        now_s += 1.0
        replica_id = ReplicaId(f"r{who}")
        if what == "expire":
            now_s += SILENCE_LIMIT_S - 3.0
            view.expire(now_s)
        elif what == "note":
            view.note_adapter(replica_id, EngineName("n@1"), now_s)
        elif what == "retract":
            view.retract_adapter(replica_id, EngineName("n@1"))
        else:
            said = {"phase": phase, "adapters": tuple(names), "running": running, "kv_usage_ratio": usage}
            view.fold(beat(replica_id=replica_id, pool=pool, sequence=sequence, **said), now_s)
        for name in (BASE, OTHER):
            assert_index_of(view, name)


def pulse(**changes: Any) -> Pulse:
    said = decode_line(pulse_of(beat(**changes)))
    assert isinstance(said, Pulse)
    return said


def test_a_pulse_stands_for_the_whole_beat_with_its_load() -> None:
    view = view_of(beat(adapters=("a",), zone="z", running=1))
    completed = view.complete_pulse(pulse(sequence=2, running=9))
    assert completed is not None and completed[0] == beat(sequence=2, adapters=("a",), zone="z", running=9)
    assert view.fold(completed[0], 1.0, completed[1])
    known = view.replica(R0)
    assert known is not None and (known.running, known.adapters, known.zone) == (9, frozenset({"a"}), "z")
    assert known == to_view(completed[0])


@pytest.mark.parametrize("whose", [{"replica_id": "r1"}, {"incarnation": 2000}])
def test_pulse_of_an_unknown_agent_is_ignored(whose: dict[str, Any]) -> None:
    assert view_of(beat()).complete_pulse(pulse(sequence=2, **whose)) is None


def test_pulse_keeps_adapters_noted_meanwhile() -> None:
    view = view_of(beat(adapters=("a",)))
    view.note_adapter(R0, EngineName("b"), 0.0)
    for sequence, at_s, there in ((2, 1.0, {"a", "b"}), (3, NOTED_FOR_S + 0.1, {"a"})):
        completed = view.complete_pulse(pulse(sequence=sequence))
        assert completed is not None and view.fold(completed[0], at_s, completed[1])
        known = view.replica(R0)
        assert known is not None and known.adapters == frozenset(there)


def zoned(view: FleetView, names: str, now_s: float, sequence: int) -> None:
    for name in names.split():
        view.fold(beat(replica_id=name, zone=name[0], node=f"node-{name}", sequence=sequence), now_s)


def test_a_zone_that_falls_silent_is_suspected_and_back_with_a_heartbeat() -> None:
    view = FleetView()
    for second in range(4):
        zoned(view, "a1 a2 b1 b2" if second else "a1 a2 b1 b2 c1 c2", float(second), second)
        assert not view.update_suspicions(second + 0.5)[0] or second == 3
    assert view.outlier_status(BASE, 3.6).suspected == {"c1", "c2"}
    assert view.ejected(BASE, 3.6) == {"c1", "c2"}
    zoned(view, "c2", 4.0, 9)
    assert view.update_suspicions(4.1) == (frozenset(), frozenset())
    assert view.outlier_status(BASE, 4.1).suspected == {"c1"}
    zoned(view, "c1", 4.2, 9)
    assert view.update_suspicions(4.3)[1] == {("zone", "c")}
    assert view.outlier_status(BASE, 4.3).suspected == frozenset()


def test_bus_pause_raises_no_suspicions() -> None:
    view = FleetView()
    zoned(view, "a1 a2 b1 b2 c1 c2", 0.0, 1)
    view.update_suspicions(8.0)
    zoned(view, "a1 a2 b1 b2", 8.1, 2)
    view.update_suspicions(8.2)
    assert not view.suspicions.replicas


def test_troubled_node_is_forgotten_when_reports_expire() -> None:
    view = FleetView()
    zoned(view, "a1 a2 b1 b2", 0.0, 1)
    view.set_troubled_nodes({"node-a1": "down"}, 60.0)
    assert view.update_suspicions(1.0)[0] == {("node", "node-a1")}
    zoned(view, "a1 a2 b1 b2", 60.5, 2)
    assert view.update_suspicions(61.0)[1] == {("node", "node-a1")}


def test_last_ready_replica_is_not_ejected_when_suspected() -> None:
    view = FleetView()
    zoned(view, "a1 b1", 0.0, 1)
    view.set_troubled_nodes({"node-a1": "down"}, 60.0)
    view.update_suspicions(0.1)
    assert view.ejected(BASE, 0.1) == {"a1"}
    view.fold(beat(replica_id="b1", zone="b", node="node-b1", sequence=2, phase="draining"), 0.2)
    assert view.ejected(BASE, 0.2) == frozenset()
