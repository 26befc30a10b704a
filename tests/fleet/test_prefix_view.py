"""Prefix view: whatever updates are lost, it shows exactly what the replica holds, or nothing."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix.block_bloom import build
from functions.decisions.prefix.block_names import chain
from functions.fleet.prefix_filters import LeadingBlocks
from functions.fleet.prefix_updates import SILENCE_LIMIT_S, Delta, PrefixBloom, State, pack
from functions.fleet.prefix_view import PrefixView

POOL = PoolName("base")
CHAIN = list(chain(0, array("q", range(40)), 1))


def delta(sequence: int, added: list[int], removed: list[int] = [], generation: int = 7, **more: object) -> Delta:  # noqa: B006
    given = {"replica_id": "r-0", "pool": "base", "block_tokens": 16} | more
    return Delta(generation=generation, sequence=sequence, added=pack(added), removed=pack(removed), **given)  # type: ignore[arg-type]


def state(sequence: int, names: list[int], part: int = 0, parts: int = 1, generation: int = 7) -> State:
    return State("r-0", "base", generation, sequence, 16, part, parts, pack(names))


def view_of(*news: Delta | State | PrefixBloom) -> PrefixView:
    view = PrefixView()
    for item in news:
        view.fold(item, 0.0)
    return view


def held(view: PrefixView) -> dict[str, int] | None:
    found = view.held_by_events(POOL, CHAIN)
    return found.blocks if found is not None else None  # type: ignore[return-value]


def held_by_bloom(view: PrefixView) -> dict[str, int] | None:
    found = view.held_by_bloom(POOL, CHAIN)
    return found.blocks if found is not None else None  # type: ignore[return-value]


def test_deltas_from_the_start_give_the_full_view() -> None:
    view = view_of(delta(0, []), delta(1, CHAIN[:5]), delta(2, CHAIN[5:9]), delta(2, []), delta(3, [], CHAIN[7:9]))
    assert held(view) == {"r-0": 7}
    assert view.block_tokens(POOL) == 16
    assert (view.known_replicas(), view.known_blocks()) == ({(POOL, "events"): 1}, {(POOL, "events"): 7})


def test_a_lost_delta_makes_a_replica_unknown_until_its_state_comes() -> None:
    view = view_of(delta(0, []), *(delta(at, [CHAIN[at - 1]]) for at in range(1, 5)))
    assert held(view) == {"r-0": 4}
    view.fold(delta(6, [CHAIN[5]]), 0.0)
    assert held(view) is None and view.unknown_replicas(POOL) == ("r-0",) and view.gaps_total == 1
    view.fold(state(6, CHAIN[:3], 0, 2), 0.0)
    assert held(view) is None
    view.fold(state(6, CHAIN[3:6], 1, 2), 0.0)
    assert held(view) == {"r-0": 6} and view.unknown_replicas(POOL) == ()
    view.fold(delta(7, [CHAIN[6]]), 0.0)
    assert held(view) == {"r-0": 7}


def test_late_listener_waits_for_a_state() -> None:
    view = view_of(delta(40, CHAIN[:5]))
    assert held(view) is None and view.unknown_replicas(POOL) == ("r-0",)


@pytest.mark.parametrize(
    "parts",
    [
        [state(6, CHAIN[:3], 1, 2)],
        [state(6, CHAIN[:3], 0, 3), state(6, CHAIN[3:6], 2, 3)],
        [state(6, CHAIN[:3], 0, 2), state(7, CHAIN[3:6], 1, 2)],
        [state(6, CHAIN[:3], 0, 2), state(6, CHAIN[3:6], 1, 2, generation=8)],
    ],
)
def test_incomplete_state_parts_are_ignored(parts: list[State]) -> None:
    view = view_of(delta(5, []), *parts)
    assert held(view) is None
    view.fold(state(6, CHAIN[:4]), 0.0)
    assert held(view) == {"r-0": 4}


def test_a_new_generation_takes_the_place_of_the_old() -> None:
    view = view_of(delta(0, []), delta(1, CHAIN[:5]), delta(0, [], generation=8))
    assert held(view) == {}
    view.fold(delta(2, CHAIN[:5]), 0.0)
    assert held(view) == {}, "the old one speaks no more"
    view.fold(delta(1, CHAIN[:2], generation=8), 0.0)
    assert held(view) == {"r-0": 2}


def test_silence_makes_unknown() -> None:
    view = view_of(delta(0, []), delta(1, CHAIN[:5]), PrefixBloom("r-1", "base", 16, 5, build(CHAIN[:5])))
    view.sweep(SILENCE_LIMIT_S)
    assert held(view) == {"r-0": 5} and held_by_bloom(view) == {"r-1": 5}
    view.sweep(SILENCE_LIMIT_S + 1)
    assert held(view) is None and held_by_bloom(view) is None


def test_block_evicted_from_the_accelerator_is_held_in_host_memory() -> None:
    """The prologue's example: by events, by a state and by filters."""
    moved = delta(2, [], CHAIN[3:7], host_added=pack(CHAIN[3:7]))
    whole = State("r-1", "base", 7, 2, 16, 0, 1, pack(CHAIN[:3]), pack(CHAIN[3:7]))
    view = view_of(delta(0, []), delta(1, CHAIN[:7]), moved, whole)
    found = view.held_by_events(POOL, CHAIN[:9])
    assert found == LeadingBlocks({"r-0": 7, "r-1": 7}, {"r-0": 4, "r-1": 4})  # type: ignore[dict-item]
    view.fold(delta(3, [], host_removed=pack(CHAIN[5:7])), 0.0)
    found = view.held_by_events(POOL, CHAIN[:9])
    assert found is not None and (found.blocks["r-0"], found.in_host["r-0"]) == (5, 2)  # type: ignore[index]
    assert view.known_blocks()[POOL, "events"] == 5 + 7


def test_filters_of_both_places() -> None:
    view = view_of(
        PrefixBloom("r-0", "base", 16, 5, build(CHAIN[:5])),
        PrefixBloom("r-1", "base", 16, 7, build(CHAIN[:3]), build(CHAIN[:7])),
    )
    found = view.held_by_bloom(POOL, CHAIN)
    assert found == LeadingBlocks({"r-0": 5, "r-1": 7}, {"r-1": 4})  # type: ignore[dict-item]
    for at in range(20):  # more columns than initially allocated
        view.fold(PrefixBloom(f"s-{at}", "base", 16, 2, build(CHAIN[:2])), 0.0)
    found = view.held_by_bloom(POOL, CHAIN)
    assert found is not None and found.blocks["s-19"] == 2 and found.in_host == {"r-1": 4}  # type: ignore[comparison-overlap,index]
    view.forget(ReplicaId("r-1"))
    view.fold(PrefixBloom("t-0", "base", 16, 1, build(CHAIN[:1])), 0.0)
    found = view.held_by_bloom(POOL, CHAIN)
    assert found is not None and found.in_host == {} and found.blocks["t-0"] == 1, "the column is another's now"  # type: ignore[index]


@pytest.mark.parametrize("wrong", [b"x" * 24, b"x" * 8])
def test_invalid_bloom_filter_changes_nothing(wrong: bytes) -> None:
    view = view_of(PrefixBloom("r-0", "base", 16, 5, build(CHAIN[:5])))
    with pytest.raises(ValueError, match="a filter of"):
        view.fold(PrefixBloom("r-0", "base", 16, 5, build(CHAIN[:9]), wrong), 0.0)
    assert held_by_bloom(view) == {"r-0": 5}


def test_a_new_generation_forgets_host_memory() -> None:
    view = view_of(delta(0, []), delta(1, [], host_added=pack(CHAIN[:7])), delta(0, [], generation=8))
    assert held(view) == {}


def test_another_size_of_blocks_waits_until_the_first_one_is_gone() -> None:
    view = view_of(delta(0, []), delta(1, CHAIN[:5]))
    other = {"replica_id": "r-1", "block_tokens": 128}
    view.fold(delta(0, [], **other), 0.0)
    view.fold(delta(1, CHAIN, **other), 0.0)
    assert held(view) == {"r-0": 5} and view.block_tokens(POOL) == 16
    view.forget(ReplicaId("r-0"))
    view.fold(delta(0, [], **other), 0.0)
    view.fold(delta(1, CHAIN[:3], **other), 0.0)
    assert held(view) == {"r-1": 3} and view.block_tokens(POOL) == 128


def test_a_replica_without_blocks_yet_says_nothing_of_their_size() -> None:
    view = view_of(delta(0, [], block_tokens=0), delta(1, CHAIN[:5]))
    assert held(view) == {"r-0": 5}


def test_invalid_host_filter_is_refused() -> None:
    view = view_of(PrefixBloom("r-0", "base", 16, 5, build(CHAIN[:5])))
    for replica_id in ("r-0", "r-1"):
        with pytest.raises(ValueError, match="filter of"):
            view.fold(PrefixBloom(replica_id, "base", 16, 5, b"12345678"), 0.0)
    assert held_by_bloom(view) == {"r-0": 5}


Move = st.tuples(st.sampled_from(["add", "remove", "anew", "state"]), st.integers(0, 40), st.booleans())


@given(st.lists(Move, max_size=50))
def test_lost_messages_never_cause_a_wrong_view(moves: list[tuple[str, int, bool]]) -> None:
    """The replica always holds a prefix of CHAIN; the bus drops the messages marked as lost."""
    view, depth, sequence, generation = view_of(delta(0, [])), 0, 0, 7
    for what, to, dropped in moves:
        news: list[Delta | State] = []
        if what == "anew":
            depth, sequence, generation = 0, 0, generation + 1
            news = [delta(0, [], generation=generation)]
        elif what == "state":
            half = depth // 2
            news = [
                state(sequence, CHAIN[:half], 0, 2, generation),
                state(sequence, CHAIN[half:depth], 1, 2, generation),
            ]
            if dropped:
                view.fold(news[1], 0.0)
        elif (what == "add" and to > depth) or (what == "remove" and to < depth):
            sequence += 1
            news = [delta(sequence, CHAIN[depth:to], CHAIN[to:depth], generation)]
            depth = to
        for item in news if not dropped else []:
            view.fold(item, 0.0)
            view.sweep(0.0)
        if not dropped and news and held(view) is not None:
            assert held(view) == ({"r-0": depth} if depth else {})


def test_invented_replica_names_use_no_memory() -> None:
    view = view_of(delta(0, []))
    for number in range(500):
        view.fold(delta(0, [], replica_id="liar", pool=f"pool-{number}"), 0.0)
        with pytest.raises(ValueError, match="power of two"):
            view.fold(PrefixBloom(f"liar-{number}", f"bloom-{number}", 16, 3, b"12345678"), 0.0)
    assert len(view._pools) == 2 and len(view._pool_of) == 2
    view.sweep(SILENCE_LIMIT_S + 1.0)
    assert not view._pools and not view._pool_of


def test_agent_with_a_clock_set_back_is_accepted_after_silence() -> None:
    view = view_of(delta(0, []), delta(1, CHAIN[:5]))
    for now_s in range(0, 45, 5):
        view.fold(state(9, CHAIN[:2], generation=3), float(now_s))
        view.sweep(float(now_s))
    assert held(view) == {"r-0": 2}
