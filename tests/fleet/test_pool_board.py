"""Pool reports of gateways: decoded strictly, added up, and dropped when their gateway falls silent."""

import msgspec
import pytest

from functions.decisions.quantile_sketch import QuantileSketch
from functions.fleet import pool_heartbeat
from functions.fleet.pool_board import HEARD_FOR_S, MAX_GATEWAYS, NEEDS_FOR_S, GatewayNeeds, Lacking, PoolBoard
from functions.fleet.pool_heartbeat import (
    HEARTBEAT_MAX_BYTES,
    MAX_DEMAND,
    MAX_NEEDS,
    PoolDemand,
    PoolHeartbeat,
    PoolHeartbeatInvalid,
    PoolStats,
    UnmetNeed,
    decode,
    encode,
)


def beat(*stats: PoolStats, gateway: str = "gw-1", sequence: int = 1, incarnation: int = 7) -> PoolHeartbeat:
    return PoolHeartbeat(gateway, incarnation, sequence, 1_800_000_000.0, stats)


def stats(pool: str = "a", window_s: float = 30.0, **figures: object) -> PoolStats:
    return PoolStats(pool, window_s, **figures)  # type: ignore[arg-type]


def sketch(*values_ms: float) -> dict[int, int]:
    made = QuantileSketch()
    for value_ms in values_ms:
        made.add(value_ms)
    return made.buckets()


def test_two_gateways_are_added() -> None:
    board = PoolBoard()
    board.record_heartbeat(beat(stats(arrivals=60, queue_s=0.2, queued_tokens=10, ttft_ms=sketch(*[100.0] * 99))), 0.0)
    board.record_heartbeat(
        beat(stats(window_s=10.0, arrivals=10, queue_s=1.5, ttft_ms=sketch(900.0)), gateway="gw-2"), 0.0
    )
    total = board.sums(0.0)["a"]
    assert (total.gateways, total.arrivals_per_s, total.queue_s, total.queued_tokens) == (2, 3.0, 1.5, 10)
    assert total.ttft_p50_s == pytest.approx(0.1, rel=0.01)
    assert total.ttft_p99_s == pytest.approx(0.1, rel=0.01)
    assert total.gap_p99_s is None


def test_a_gateway_that_falls_silent_is_no_part_of_the_sum() -> None:
    board = PoolBoard()
    board.record_heartbeat(beat(stats(arrivals=60)), 0.0)
    board.record_heartbeat(beat(stats(arrivals=30), gateway="gw-2"), HEARD_FOR_S)
    assert board.sums(HEARD_FOR_S + 1.0)["a"].gateways == 1
    assert board.sums(3 * HEARD_FOR_S) == {}, "nobody has spoken of it: it is not a pool that nobody asks"


def test_outdated_heartbeat_is_ignored_but_a_new_process_counts() -> None:
    board = PoolBoard()
    board.record_heartbeat(beat(stats(arrivals=60), sequence=5), 0.0)
    board.record_heartbeat(beat(stats(arrivals=30), sequence=4), 0.0)
    assert board.sums(0.0)["a"].arrivals_per_s == 2.0
    board.record_heartbeat(beat(stats(arrivals=30), sequence=0, incarnation=8), 0.0)
    assert board.sums(0.0)["a"].arrivals_per_s == 1.0


def test_rungs_of_any_gateway_are_shown_in_the_ladders_order() -> None:
    board = PoolBoard()
    board.record_heartbeat(beat(stats(rungs=("shift",), why="full")), 0.0)
    board.record_heartbeat(beat(stats(rungs=("shed",)), gateway="gw-2"), 0.0)
    assert board.sums(0.0)["a"].rungs == ("shed", "shift")


def test_the_book_is_bounded() -> None:
    board = PoolBoard()
    taken = [board.record_heartbeat(beat(stats(), gateway=f"gw-{number}"), 0.0) for number in range(MAX_GATEWAYS + 1)]
    assert taken == [True] * MAX_GATEWAYS + [False]
    assert board.refused_total == 1


def test_a_beat_survives_the_bus() -> None:
    whole = beat(stats(arrivals=3, ttft_ms=sketch(1.0, 5.0, 80.0), rungs=("shed",)))
    assert decode(encode(whole)) == (whole, 0)


@pytest.mark.parametrize(
    "change",
    [{"window_s": 0.0}, {"pool": "a b"}, {"arrivals": -1}, {"ttft_ms": {"99999": 1}}, {"ttft_ms": {"1": 0}}, {"x": 1}],
    ids=str,
)
def test_what_is_out_of_range_is_refused(change: dict[str, object]) -> None:
    document = msgspec.json.decode(encode(beat(stats())))
    document["pools"][0].update(change)
    board = PoolBoard()
    assert not board.receive_message(msgspec.json.encode(document), 0.0)
    assert board.refused_total == 1


def test_one_pool_that_is_out_of_range_costs_the_others_nothing() -> None:
    document = msgspec.json.decode(encode(beat(stats("a", arrivals=60), stats("b"))))
    document["pools"][1]["queue_s"] = 1e9
    board = PoolBoard()
    assert board.receive_message(msgspec.json.encode(document), 0.0)
    assert board.sums(0.0).keys() == {"a"}
    assert board.refused_total == 1


def test_signs_of_a_small_pool_are_summed_separately() -> None:
    board = PoolBoard()
    board.record_heartbeat(beat(stats(shed=60, overflow=30, queued_tokens=9, foreground_queued_tokens=4)), 0.0)
    board.record_heartbeat(beat(stats(shed=30, overflow=15, foreground_queued_tokens=2), gateway="gw-2"), 0.0)
    total = board.sums(0.0)["a"]
    assert (total.shed_per_s, total.overflow_per_s, total.foreground_queued_tokens) == (3.0, 1.5, 6)


def test_a_message_over_its_bound_is_not_read() -> None:
    with pytest.raises(PoolHeartbeatInvalid, match="over the limit"):
        decode(b" " * (HEARTBEAT_MAX_BYTES + 1))


def test_the_longest_beat_stays_below_the_bound() -> None:
    every = dict.fromkeys(range(pool_heartbeat.FIRST_BUCKET, pool_heartbeat.LAST_BUCKET + 1), 10**6)
    largest = [
        stats("p" * 128, ttft_ms=every, gap_ms=every, why="w" * 256)
        for _ in range(pool_heartbeat.MAX_POOLS_PER_HEARTBEAT)
    ]
    assert len(encode(beat(*largest))) <= HEARTBEAT_MAX_BYTES


# Needs: files and secrets that gateways lack.


def needs(*lacking: tuple[str, str], gateway: str = "gw-1") -> bytes:
    said = tuple(UnmetNeed(what, subject, "not there") for what, subject in lacking)
    return encode(PoolHeartbeat(gateway, 7, 1, 1_800_000_000.0, needs=said))


def test_needs_are_summed_and_dropped_with_their_gateway() -> None:
    board = PoolBoard()
    assert board.needs(0.0) == GatewayNeeds(0)
    assert board.receive_message(needs(("tokenizer", "a")), 0.0)
    assert board.receive_message(needs(("tokenizer", "a"), ("tool_secret", "acme/x"), gateway="gw-2"), 5.0)
    assert board.needs(5.0) == GatewayNeeds(
        2, (Lacking("tokenizer", "a", 2, "not there"), Lacking("tool_secret", "acme/x", 1, "not there"))
    )
    assert not board.sums(5.0), "it has told of no pool"
    board.receive_message(needs(gateway="gw-2"), 15.0)
    assert board.needs(NEEDS_FOR_S + 1) == GatewayNeeds(1), "nothing is lacking at the one that still speaks"


def test_figures_and_needs_do_not_hide_each_other() -> None:
    board = PoolBoard()
    board.receive_message(needs(("tokenizer", "a")), 0.0)
    board.record_heartbeat(beat(stats(arrivals=30)), 0.0)
    assert board.needs(0.0).gateways == 1 and board.sums(0.0)["a"].arrivals_per_s == 1.0


def test_a_message_of_figures_is_as_an_older_registry_knows_it() -> None:
    assert b"needs" not in encode(beat(stats()))
    assert b"needs" in needs()


def test_needs_are_bounded() -> None:
    too_many = encode(PoolHeartbeat("gw-1", 7, 1, 1.0, needs=(UnmetNeed("tokenizer", "a"),) * (MAX_NEEDS + 1)))
    with pytest.raises(PoolHeartbeatInvalid):
        decode(too_many)
    board = PoolBoard()
    for number in range(MAX_GATEWAYS + 5):
        board.receive_message(needs(gateway=f"gw-{number}"), 0.0)
    assert board.needs(0.0).gateways == MAX_GATEWAYS


def demand(waking: int, open_requests: int = 0, gateway: str = "gw-1", sequence: int = 1) -> bytes:
    told = (PoolDemand("a", waking, open_requests),)
    return encode(PoolHeartbeat(gateway, 7, sequence, 1.0, demand=told))


def test_requests_that_wait_for_a_pool_at_zero_are_added_up_and_forgotten_with_their_gateway() -> None:
    board = PoolBoard()
    board.record_heartbeat(beat(stats()), 0.0)
    board.receive_message(demand(5, 1), 0.0)
    board.receive_message(demand(2, gateway="gw-2"), 3.0)
    assert (board.sums(3.0)["a"].waking, board.sums(3.0)["a"].open_requests) == (7, 1)
    board.receive_message(demand(0, sequence=3), 3.0)
    board.receive_message(demand(9, sequence=2), 3.0)
    assert board.sums(3.0)["a"].waking == 2, "one that was overtaken does not count"
    board.record_heartbeat(beat(stats(), sequence=2), 3.0 + HEARD_FOR_S)
    assert board.sums(3.1 + HEARD_FOR_S)["a"].waking == 0, "nobody has spoken of it lately"


def test_a_message_of_figures_or_needs_is_without_demand_as_an_older_registry_knows_it() -> None:
    assert b"demand" not in encode(beat(stats())) and b"demand" not in needs()
    assert b"demand" in demand(1)


def test_demand_is_bounded() -> None:
    with pytest.raises(PoolHeartbeatInvalid):
        decode(encode(PoolHeartbeat("gw-1", 7, 1, 1.0, demand=(PoolDemand("a"),) * (MAX_DEMAND + 1))))
