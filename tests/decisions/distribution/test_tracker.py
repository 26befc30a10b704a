"""Decisions of the tracker: which node reads which chunk from the store, and which peers it names to a node."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.artifacts.swarm.exchange import TRACKER_RETRY_S
from functions.artifacts.swarm.protocol import ANSWER_WITHIN_S
from functions.decisions.distribution.chunk_bits import full, indexes
from functions.decisions.distribution.tracker import Announcement, Board, BoardFull, BoardPolicy


def address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}:8500"


def news(number: int, have: int = 0, *, room: int = 0, zone: str = "z", avoid: tuple[str, ...] = ()) -> Announcement:
    return Announcement(address(number), zone, have, room, avoid)


def test_worked_example() -> None:
    board = Board(1000)
    for number in range(9):
        board.announce(news(number), 0.0, Random(1))
    assert board.announce(news(9, room=2), 0.0, Random(1)).grants.bit_count() == 25
    alone = Board(1000)
    assert alone.announce(news(0, room=2), 0.0, Random(1)).grants.bit_count() == 250


@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 2**32))
def test_no_chunk_is_granted_to_two_and_all_are_granted_in_the_end(count: int, nodes: int, seed: int) -> None:
    rng = Random(seed)
    board = Board(count)
    granted: dict[int, int] = {}
    for _ in range(count * 2):
        for number in range(nodes):
            answer = board.announce(news(number, room=rng.randrange(3)), 1.0, rng)
            for chunk in indexes(answer.grants):
                assert granted.setdefault(chunk, number) == number
    assert board.leases == len(granted)
    last = board.announce(news(0, room=count), 1.0, rng)
    assert last.grants.bit_count() + sum(owner != 0 for owner in granted.values()) == count


def test_chunks_that_a_peer_has_are_not_granted() -> None:
    board = Board(4)
    board.announce(news(1, 0b0111), 0.0, Random(1))
    assert board.announce(news(2, room=4), 0.0, Random(1)).grants == 0b1000


def test_chunks_of_avoided_peers_are_granted() -> None:
    board = Board(4)
    board.announce(news(1, 0b0111), 0.0, Random(1))
    answer = board.announce(news(2, room=4, avoid=(address(1),)), 0.0, Random(1))
    assert (answer.grants, answer.peers) == (0b1111, ())


def test_node_avoided_by_two_is_granted_nothing() -> None:
    board = Board(4)
    bad = (address(9),)
    board.announce(news(1, avoid=bad), 0.0, Random(1))
    assert board.announce(news(9, room=1), 0.0, Random(1)).grants.bit_count() == 1
    board.announce(news(2, avoid=bad), 0.0, Random(1))
    assert board.announce(news(9, 0b1111, room=1), 0.0, Random(1)).grants == 0
    assert board.announce(news(9, 0, room=1), 0.0, Random(1)).grants == 0
    board.announce(news(2), 0.0, Random(1))
    assert board.announce(news(9, 0, room=1), 0.0, Random(1)).grants.bit_count() == 1


def test_node_avoided_by_two_loses_its_grants() -> None:
    board, bad = Board(100), (address(9),)
    assert board.announce(news(9, room=1), 0.0, Random(1)).grants.bit_count() == 25
    for number in (1, 2):
        board.announce(news(number, avoid=bad), 1.0, Random(1))
    assert board.announce(news(9), 2.0, Random(1)).grants == 0
    assert board.leases == 0


def test_grant_ends_when_a_peer_announces_the_chunk() -> None:
    """After a restart of the tracker, the first node to announce is granted chunks that others have had for long."""
    board = Board(4)
    assert board.announce(news(1, room=4), 0.0, Random(1)).grants == full(4)
    board.announce(news(2, 0b0111), 0.5, Random(1))
    assert board.announce(news(1, room=4), 1.0, Random(1)).grants == 0b1000


@pytest.mark.parametrize("silent_s", [8.0, 14.5, 16.0, 300.0])
def test_stalled_tracker_expires_no_node(silent_s: float) -> None:
    board = Board(3)
    for number in range(3):
        board.announce(news(number, 1 << number), number * 0.4, Random(1))
    board.expire(0.8 + silent_s)
    assert board.announce(news(0, 0b001, room=3), 0.8 + silent_s, Random(1)).grants == 0
    assert board.nodes == 3
    for second in range(1, 17):
        board.announce(news(0, 0b001), 0.8 + silent_s + second, Random(1))
    assert board.nodes == 1


def test_a_lost_announcement_costs_no_grant() -> None:
    """The lease outlasts the answer timeout, the retry delay and one interval, with seconds to spare."""
    longest_s = BoardPolicy().again_min_s + ANSWER_WITHIN_S + TRACKER_RETRY_S
    assert longest_s + 5.0 < BoardPolicy().expire_after_s


def test_finished_grant_frees_its_place() -> None:
    board = Board(4, BoardPolicy(max_grants=2))
    assert board.announce(news(1, room=2), 0.0, Random(1)).grants.bit_count() == 2
    first = board.announce(news(1, room=2), 0.0, Random(1)).grants
    after = board.announce(news(1, first, room=2), 0.0, Random(1)).grants
    assert after == full(4) & ~first


def test_a_silent_nodes_grants_go_to_another() -> None:
    board = Board(4, BoardPolicy(expire_after_s=10.0))
    board.announce(news(1, room=4), 0.0, Random(1))
    assert board.announce(news(2, room=4), 4.9, Random(1)).grants == 0
    assert board.announce(news(2, room=4), 9.8, Random(1)).grants == 0
    assert board.announce(news(2, room=4), 10.1, Random(1)).grants == full(4)
    assert board.nodes == 1


def test_overdue_grant_moves_to_another_node() -> None:
    board = Board(1, BoardPolicy(lease_s=60.0))
    for now_s in range(61):
        assert board.announce(news(1, room=1), float(now_s), Random(1)).grants == 1
        assert board.announce(news(2, room=1), float(now_s), Random(1)).grants == 0
    assert board.announce(news(1, room=0), 61.0, Random(1)).grants == 0
    assert board.announce(news(2, room=1), 61.0, Random(1)).grants == 1
    assert board.announce(news(1, room=1), 61.5, Random(1)).grants == 0


def test_removed_node_is_not_named_and_holds_no_grant() -> None:
    board = Board(4)
    board.announce(news(1, 0b1, room=3), 0.0, Random(1))
    board.remove_member(address(1))
    board.remove_member(address(1))
    answer = board.announce(news(2, room=4), 0.0, Random(1))
    assert (answer.peers, answer.grants) == ((), full(4))


def test_most_named_peers_are_of_the_own_zone() -> None:
    board = Board(4, BoardPolicy(sample=8))
    for number in range(40):
        board.announce(news(number, 0b1, zone="near" if number < 20 else "far"), 0.0, Random(1))
    zones = [peer.zone for peer in board.announce(news(99, zone="near"), 0.0, Random(1)).peers]
    assert (zones.count("near"), zones.count("far")) == (6, 2)
    zones = [peer.zone for peer in board.announce(news(98, zone="alone"), 0.0, Random(1)).peers]
    assert len(zones) == 8


def test_peers_with_missing_chunks_are_named_first() -> None:
    board = Board(4, BoardPolicy(sample=2))
    for number, have in ((1, 0b0001), (2, 0b0010), (4, 0), (5, 0b0001)):
        board.announce(news(number, have), 0.0, Random(1))
    named = [peer.address for peer in board.announce(news(3, 0b0001), 0.0, Random(1)).peers]
    assert named[0] == address(2)
    assert len(named) == 2


def test_avoided_peer_is_not_named() -> None:
    board = Board(4)
    board.announce(news(1, 0b0010), 0.0, Random(1))
    assert board.announce(news(3, avoid=(address(1),)), 0.0, Random(1)).peers == ()


def test_announcement_rate_does_not_grow_with_the_nodes() -> None:
    board = Board(4)
    for number in range(1000):
        last = board.announce(news(number), 0.0, Random(1))
    assert (last.again_after_s, last.nodes) == (5.0, 1000)
    board.announce(news(0), 7.4, Random(1))
    board.announce(news(0), 14.8, Random(1))  # three announcements at this pace: no node has expired yet
    assert board.nodes == 1000
    board.announce(news(0), 15.1, Random(1))
    assert board.nodes == 1


def test_nodes_are_bounded_and_known_ones_stay() -> None:
    board = Board(4, BoardPolicy(max_nodes=2))
    board.announce(news(1), 0.0, Random(1))
    board.announce(news(2), 0.0, Random(1))
    with pytest.raises(BoardFull):
        board.announce(news(3), 0.0, Random(1))
    board.announce(news(2), 0.0, Random(1))
    assert board.nodes == 2
