"""Decisions of one node in a swarm: which chunk to request from which peer, and how it handles the result."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.distribution.chunk_bits import full
from functions.decisions.distribution.peers import PeerFacts, PeerFailure
from functions.decisions.distribution.swarm import PeerAnswer, PeerRequest, Swarm, SwarmPolicy, reader_rank

ME = "10.0.0.1:1"
A, B, C = "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"


def a_swarm(count: int, policy: SwarmPolicy | None = None, have: int = 0) -> Swarm:
    return Swarm(ME, "z1", count, have, 0.0, policy or SwarmPolicy())


def apply_peers(swarm: Swarm, *peers: tuple[str, int], grants: int = 0, zone: str = "z1", now_s: float = 0.0) -> None:
    facts = tuple(PeerFacts(address, zone, have) for address, have in peers)
    swarm.apply_tracker_answer(PeerAnswer(facts, grants, 1.0, 1 + len(peers)), now_s)


def chunk_and_peer(asks: list[PeerRequest]) -> list[tuple[int, str | None]]:
    return [(ask.chunk, ask.peer) for ask in asks]


def test_worked_example() -> None:
    swarm = a_swarm(4, SwarmPolicy(max_requests=2))
    apply_peers(swarm, (A, 0b0011), (B, 0b0010))
    assert chunk_and_peer(swarm.next(0.0, Random(1))) == [(0, A), (1, B)]
    assert swarm.next(0.0, Random(1)) == []
    apply_peers(swarm, grants=0b1100)
    assert sorted(chunk_and_peer(swarm.next(0.0, Random(1)))) == [(2, None), (3, None)]


def test_the_rarest_chunk_comes_first() -> None:
    swarm = a_swarm(3, SwarmPolicy(max_requests=1))
    apply_peers(swarm, (A, 0b111), (B, 0b011), (C, 0b001))
    assert chunk_and_peer(swarm.next(0.0, Random(1))) == [(2, A)]


def test_the_own_zone_comes_before_rarity() -> None:
    swarm = a_swarm(2, SwarmPolicy(max_requests=1))
    apply_peers(swarm, (A, 0b01), (C, 0b01))
    apply_peers(swarm, (B, 0b10), zone="z2")
    (first,) = swarm.next(0.0, Random(1))
    assert (first.chunk, first.peer in (A, C)) == (0, True)
    swarm.record_chunk(first, 0.0)
    assert chunk_and_peer(swarm.next(0.0, Random(1))) == [(1, B)]


def test_requests_respect_all_bounds() -> None:
    swarm = a_swarm(64, SwarmPolicy(max_requests=5, max_per_peer=2, origin_requests=3))
    apply_peers(swarm, (A, full(64)), (B, full(64)), grants=full(64))
    asks = Counter(ask.peer for ask in swarm.next(0.0, Random(1)))
    assert asks == {None: 3, A: 2, B: 2}


def test_only_granted_chunks_are_read_from_the_store() -> None:
    swarm = a_swarm(8)
    apply_peers(swarm, grants=0b101)
    first, second = swarm.next(0.0, Random(1))
    assert sorted(chunk_and_peer([first, second])) == [(0, None), (2, None)]
    apply_peers(swarm, grants=0b1000)
    assert swarm.next(0.5, Random(1)) == []
    swarm.record_chunk(first, 1.0)
    assert chunk_and_peer(swarm.next(1.0, Random(1))) == [(3, None)]


def test_failing_store_is_retried_with_backoff() -> None:
    swarm = a_swarm(1)
    apply_peers(swarm, grants=1)
    for now_s, wait_s in ((0.0, 0.5), (10.0, 1.0), (20.0, 2.0)):
        (ask,) = swarm.next(now_s, Random(1))
        swarm.record_failure(ask, PeerFailure.BROKEN, now_s)
        assert swarm.next(now_s + wait_s - 0.01, Random(1)) == []
        apply_peers(swarm, grants=1, now_s=now_s + wait_s)


def test_corrupt_peer_is_banned_for_a_time_with_evidence() -> None:
    swarm = a_swarm(2, SwarmPolicy(ban_s=600, max_requests=1))
    apply_peers(swarm, (A, 0b11))
    (ask,) = swarm.next(0.0, Random(1))
    swarm.record_failure(ask, PeerFailure.CORRUPT, 5.0, found="sha256 of something else")
    ban = swarm.peers.bans[A]
    assert (ban.chunk, ban.found, ban.until_s) == (ask.chunk, "sha256 of something else", 605.0)
    apply_peers(swarm, (A, 0b11), now_s=10.0)
    assert swarm.next(10.0, Random(1)) == []
    assert swarm.avoided(10.0) == (A,)
    apply_peers(swarm, (A, 0b11), now_s=606.0)
    assert len(swarm.next(606.0, Random(1))) == 1
    assert swarm.avoided(606.0) == ()


def test_busy_peer_is_skipped_for_its_retry_after() -> None:
    swarm = a_swarm(1)
    apply_peers(swarm, (A, 1))
    (ask,) = swarm.next(0.0, Random(1))
    swarm.record_failure(ask, PeerFailure.BUSY, 0.0, after_s=0.7)
    assert swarm.next(0.69, Random(1)) == []
    assert chunk_and_peer(swarm.next(0.7, Random(1))) == [(0, A)]
    assert swarm.avoided(0.7) == ()


def test_broken_or_slow_peer_is_backed_off_and_then_reported() -> None:
    swarm = a_swarm(1)
    apply_peers(swarm, (A, 1))
    now_s = 0.0
    for wait_s, failure in ((0.5, PeerFailure.BROKEN), (1.0, PeerFailure.SLOW), (2.0, PeerFailure.BROKEN)):
        (ask,) = swarm.next(now_s, Random(1))
        swarm.record_failure(ask, failure, now_s)
        assert swarm.next(now_s + wait_s * 0.99, Random(1)) == []
        now_s += wait_s
    assert swarm.avoided(now_s) == (A,)
    (ask,) = swarm.next(now_s, Random(1))
    swarm.record_chunk(ask, now_s)
    assert swarm.avoided(now_s) == ()


def test_missing_chunk_is_not_requested_again_until_the_peer_announces_it() -> None:
    swarm = a_swarm(2, SwarmPolicy(max_requests=1))
    apply_peers(swarm, (A, 0b01))
    (ask,) = swarm.next(0.0, Random(1))
    swarm.record_failure(ask, PeerFailure.LACKS, 0.0)
    assert swarm.next(5.0, Random(1)) == []
    swarm.peers.add_chunks(A, 0b01)
    assert chunk_and_peer(swarm.next(5.0, Random(1))) == [(0, A)]


def test_peer_that_announces_missing_chunks_is_reported() -> None:
    swarm = a_swarm(8, SwarmPolicy(max_requests=1))
    now_s = 0.0
    for _ in range(3):
        apply_peers(swarm, (A, full(8)), now_s=now_s)
        (ask,) = swarm.next(now_s, Random(1))
        swarm.record_failure(ask, PeerFailure.LACKS, now_s)
        now_s += 10.0
        apply_peers(swarm, now_s=now_s)
        (ask,) = swarm.next(now_s, Random(1))
        swarm.record_chunk(ask, now_s)
    assert swarm.avoided(now_s) == (A,)


def test_last_chunks_are_requested_twice_and_the_slower_request_is_returned() -> None:
    swarm = a_swarm(1, SwarmPolicy(endgame_after_s=2.0))
    apply_peers(swarm, (A, 1), (B, 1))
    (first,) = swarm.next(0.0, Random(1))
    assert swarm.next(1.9, Random(1)) == []
    (second,) = swarm.next(2.0, Random(1))
    assert {first.peer, second.peer} == {A, B}
    assert swarm.next(9.0, Random(1)) == []
    assert swarm.record_chunk(second, 9.0) == [first]
    swarm.cancel_request(first)
    assert (swarm.missing, swarm.in_flight) == (0, 0)


def test_no_chunk_is_requested_twice_before_the_endgame() -> None:
    swarm = a_swarm(9, SwarmPolicy(max_requests=9, max_per_peer=9, endgame_chunks=4))
    apply_peers(swarm, (A, full(9)), (B, full(9)))
    assert len({ask.chunk for ask in swarm.next(0.0, Random(1))}) == 9
    assert swarm.next(100.0, Random(1)) == []


def test_request_that_is_not_in_flight_cannot_end() -> None:
    swarm = a_swarm(1)
    apply_peers(swarm, (A, 1))
    (ask,) = swarm.next(0.0, Random(1))
    swarm.record_chunk(ask, 0.0)
    with pytest.raises(KeyError):
        swarm.record_chunk(ask, 0.0)


def test_without_tracker_and_peers_everything_is_read_from_the_store() -> None:
    swarm = a_swarm(8, SwarmPolicy(origin_requests=8))
    assert swarm.next(0.0, Random(1)) == []
    swarm.has_no_tracker()
    assert {ask.chunk for ask in swarm.next(0.1, Random(1)) if ask.peer is None} == set(range(8))


def test_single_tracker_failure_causes_no_store_reads() -> None:
    swarm = a_swarm(8, SwarmPolicy(origin_requests=8))
    for _ in range(2):
        swarm.tracker_failed()
        assert swarm.next(5.0, Random(1)) == []
    swarm.tracker_failed()
    assert len(swarm.next(5.0, Random(1))) == 8


def test_silent_tracker_has_a_grace_period() -> None:
    swarm = a_swarm(8, SwarmPolicy(origin_requests=8, tracker_silent_s=15.0))
    apply_peers(swarm)
    swarm.tracker_failed()
    assert swarm.next(14.9, Random(1)) == []
    assert len(swarm.next(15.0, Random(1))) == 8


def test_without_a_tracker_each_node_reads_its_share_then_that_of_stuck_nodes() -> None:
    policy = SwarmPolicy(origin_requests=60, tracker_silent_s=15.0, takeover_s=5.0)
    swarm = a_swarm(60, policy)
    apply_peers(swarm, (A, 0), (B, 0), now_s=1000.0)
    swarm.began_s = 1015.0  # no progress since then
    share = swarm.next(1015.0, Random(1))
    assert 10 < len(share) < 30
    assert all(reader_rank(ME, [A, B], ask.chunk) == 0 for ask in share)
    second = swarm.next(1020.0, Random(1))
    assert all(reader_rank(ME, [A, B], ask.chunk) == 1 for ask in second)
    assert len(second) > 10
    swarm.next(1025.0, Random(1))
    assert swarm.waits == 0


def test_without_a_tracker_chunks_of_peers_are_not_read_from_the_store() -> None:
    swarm = a_swarm(4, SwarmPolicy(max_requests=0))
    apply_peers(swarm, (A, 0b0111))
    assert {ask.chunk for ask in swarm.next(500.0, Random(1))} == {3}


def test_without_a_tracker_chunks_of_dead_peers_are_read_from_the_store() -> None:
    swarm = a_swarm(2)
    apply_peers(swarm, (A, 0b01), (B, 0b10))
    now_s = 0.0
    while swarm.missing and now_s < 100.0:
        now_s += 0.5
        for ask in swarm.next(now_s, Random(1)):
            if ask.peer == B:
                swarm.record_failure(ask, PeerFailure.BROKEN, now_s)
            else:
                swarm.record_chunk(ask, now_s)
    assert swarm.missing == 0


def test_one_failure_of_each_peer_causes_no_store_reads() -> None:
    swarm = a_swarm(4, SwarmPolicy(max_per_peer=1, tracker_silent_s=15.0))
    apply_peers(swarm, (A, 0b1111), (B, 0b1111))
    for ask in swarm.next(0.0, Random(1)):
        swarm.record_failure(ask, PeerFailure.BROKEN, 14.0)
    assert {ask.peer for ask in swarm.next(15.0, Random(1))} == {A, B}


def test_always_busy_peer_is_reported_until_it_sends_a_chunk() -> None:
    swarm = a_swarm(2, SwarmPolicy(max_requests=1))
    apply_peers(swarm, (A, 0b11))
    for now_s in range(0, 121, 10):
        apply_peers(swarm, now_s=now_s)
        assert swarm.avoided(float(now_s)) == ()
        (ask,) = swarm.next(float(now_s), Random(1))
        swarm.record_failure(ask, PeerFailure.BUSY, float(now_s), after_s=1.0)
    assert swarm.avoided(120.0) == (A,)
    apply_peers(swarm, now_s=130.0)
    (ask,) = swarm.next(130.0, Random(1))
    swarm.record_chunk(ask, 130.0)
    assert swarm.avoided(130.0) == ()


def test_every_chunk_has_one_first_reader() -> None:
    nodes = [ME, A, B]
    shares = Counter()
    for chunk in range(300):
        ranks = {node: reader_rank(node, [other for other in nodes if other != node], chunk) for node in nodes}
        assert sorted(ranks.values()) == [0, 1, 2]
        shares[min(ranks, key=ranks.__getitem__)] += 1
    assert all(70 < share < 130 for share in shares.values())


def test_known_peers_are_bounded_and_those_in_use_stay() -> None:
    swarm = a_swarm(4, SwarmPolicy(max_peers=3, max_requests=1))
    apply_peers(swarm, (A, 0b1111))
    (ask,) = swarm.next(0.0, Random(1))
    apply_peers(swarm, *[(f"10.1.0.{n}:1", 0b1) for n in range(50)])
    assert len(swarm.peers) == 3
    assert swarm.peers.get(A) is not None
    swarm.record_chunk(ask, 0.0)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 2**32), st.integers(1, 5))
def test_all_chunks_arrive_once_despite_any_failures(count: int, seed: int, peers: int) -> None:
    """Peers fail in every way, some for ever, and the tracker grants every chunk: no chunk is lost or counted twice."""
    rng = Random(seed)
    swarm = a_swarm(count)
    addresses = [f"10.0.1.{n}:1" for n in range(peers)]
    flying: list[PeerRequest] = []
    arrived: Counter[int] = Counter()
    now_s = 0.0
    for _ in range(4000):
        if not swarm.missing:
            break
        now_s += 0.25
        apply_peers(
            swarm, *[(address, rng.getrandbits(count)) for address in addresses], grants=full(count), now_s=now_s
        )
        flying += swarm.next(now_s, rng)
        assert swarm.in_flight == len(flying) <= 4 + 2 + 4  # from peers, from the store, requested twice
        if flying:
            ask = flying.pop(rng.randrange(len(flying)))
            if rng.random() < 0.3:
                swarm.record_failure(ask, rng.choice(list(PeerFailure)), now_s, after_s=0.1)
            else:
                arrived[ask.chunk] += 1
                for other in swarm.record_chunk(ask, now_s):
                    flying.remove(other)
                    swarm.cancel_request(other)
    assert swarm.missing == 0
    assert set(arrived) == set(range(count))
    assert set(arrived.values()) == {1}
