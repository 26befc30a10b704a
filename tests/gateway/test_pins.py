"""SessionPins: the group of each session, for how long, and what is published to other gateways."""

import pytest

from functions.api.ids import RolloutId, TenantId
from functions.decisions.routing.sessions import session_hash
from functions.fleet.session_pins import (
    MAX_ROLLOUTS_PER_BATCH,
    MAX_SESSIONS_PER_BATCH,
    PinBatch,
    hashes_in,
)
from functions.gateway.routing import pins as pins_module
from functions.gateway.routing.pins import SessionPins
from tests.gateway.rig import NOW_UNIX_S, ROLLOUT, Clock

OTHER = RolloutId("ro-0000other")
TTL_S = 300.0


def session(number: int) -> bytes:
    return session_hash(TenantId("acme"), f"s{number}")


ONE = session(1)


def published(pins: SessionPins) -> list[bytes]:
    return [hash_ for entry in pins.to_publish() for hash_ in hashes_in(entry)]


def batch_of(pins: SessionPins, sent_unix_s: float = NOW_UNIX_S) -> PinBatch:
    return PinBatch("other", sent_unix_s, tuple(pins.to_publish()))


def test_pin_expires_after_its_ttl_since_the_last_request() -> None:
    clock = Clock()
    pins = SessionPins(clock)
    pins.pin(ROLLOUT, ONE, "control", TTL_S)
    clock.forward(200)
    pins.pin(ROLLOUT, ONE, "control", TTL_S)
    clock.forward(299)
    assert pins.group_of(ROLLOUT, ONE) == "control" and pins.group_of(OTHER, ONE) is None
    clock.forward(1)
    assert pins.group_of(ROLLOUT, ONE) is None
    assert len(pins) == 1
    pins.expire()
    assert len(pins) == 0


def test_a_pool_without_session_time_pins_nothing() -> None:
    pins = SessionPins(Clock())
    pins.pin(ROLLOUT, ONE, "control", 0.0)
    assert len(pins) == 0 and published(pins) == []


def test_pin_is_republished_halfway_through_its_ttl() -> None:
    clock = Clock(0.0)
    pins = SessionPins(clock)
    heard_at_s = []
    for now_s in (0, 100, 160, 200, 309, 320):
        clock.now_s = float(now_s)
        pins.pin(ROLLOUT, ONE, "control", TTL_S)
        heard_at_s += [now_s] * len(published(pins))
    assert heard_at_s == [0, 160, 320]


def test_published_pins_keep_their_group() -> None:
    pins, theirs = SessionPins(Clock()), SessionPins(Clock())
    pins.pin(ROLLOUT, ONE, "candidate", TTL_S)
    pins.pin(ROLLOUT, session(2), "control", TTL_S)
    theirs.receive_batch(batch_of(pins), NOW_UNIX_S)
    assert [theirs.group_of(ROLLOUT, it) for it in (ONE, session(2))] == ["candidate", "control"]
    assert published(theirs) == [], "what was heard is not told again"


def test_unpublished_pin_keeps_its_group() -> None:
    pins, theirs = SessionPins(Clock()), SessionPins(Clock())
    pins.pin(ROLLOUT, ONE, "candidate", TTL_S)
    pins.publish_failed(pins.to_publish())
    theirs.receive_batch(batch_of(pins), NOW_UNIX_S)
    assert theirs.group_of(ROLLOUT, ONE) == "candidate"


def test_received_pins_hold_for_their_remaining_ttl() -> None:
    clock, mine = Clock(), SessionPins(Clock())
    mine.pin(ROLLOUT, ONE, "control", TTL_S)
    theirs = SessionPins(clock)
    theirs.receive_batch(batch_of(mine), NOW_UNIX_S + 100)
    clock.forward(199)
    assert theirs.group_of(ROLLOUT, ONE) == "control"
    clock.forward(1)
    assert theirs.group_of(ROLLOUT, ONE) is None
    assert published(theirs) == [], "what was heard is not told again"


def test_expired_batch_is_ignored_and_future_batch_accepted() -> None:
    mine, theirs = SessionPins(Clock()), SessionPins(Clock())
    mine.pin(ROLLOUT, ONE, "control", TTL_S)
    batch = batch_of(mine)
    theirs.receive_batch(batch, NOW_UNIX_S + TTL_S)
    assert len(theirs) == 0
    theirs.receive_batch(batch, NOW_UNIX_S - 10_000)
    assert theirs.group_of(ROLLOUT, ONE) == "control"


def test_own_pin_is_not_replaced_by_a_received_one() -> None:
    mine, theirs = SessionPins(Clock()), SessionPins(Clock())
    mine.pin(ROLLOUT, ONE, "candidate", TTL_S)
    theirs.pin(ROLLOUT, ONE, "control", TTL_S)
    mine.receive_batch(batch_of(theirs), NOW_UNIX_S)
    assert mine.group_of(ROLLOUT, ONE) == "candidate"


def test_moved_session_is_republished_by_its_new_gateway() -> None:
    """Each gateway keeps the pin alive for its own requests and republishes it halfway through the time received."""
    clock, mine = Clock(), SessionPins(Clock())
    mine.pin(ROLLOUT, ONE, "control", TTL_S)
    theirs = SessionPins(clock)
    theirs.receive_batch(batch_of(mine), NOW_UNIX_S)
    clock.forward(100)
    theirs.pin(ROLLOUT, ONE, "control", TTL_S)
    assert published(theirs) == []
    clock.forward(60)
    theirs.pin(ROLLOUT, ONE, "control", TTL_S)
    assert published(theirs) == [ONE]


def test_ended_rollout_drops_its_pins() -> None:
    pins = SessionPins(Clock())
    pins.pin(ROLLOUT, ONE, "control", TTL_S)
    pins.pin(OTHER, ONE, "control", TTL_S)
    pins.drop_rollouts({ROLLOUT})
    assert pins.group_of(ROLLOUT, ONE) is None and pins.group_of(OTHER, ONE) == "control"
    assert [entry.rollout for entry in pins.to_publish()] == [OTHER]


def test_pins_are_bounded_and_the_least_recent_is_evicted() -> None:
    pins = SessionPins(Clock(), max_pins=3)
    for number in range(3):
        pins.pin(ROLLOUT, session(number), "control", TTL_S)
    pins.pin(ROLLOUT, session(0), "control", TTL_S)
    pins.pin(ROLLOUT, session(3), "control", TTL_S)
    groups = [pins.group_of(ROLLOUT, session(number)) for number in range(4)]
    assert groups == ["control", None, "control", "control"]
    hostile = SessionPins(Clock())
    for number in range(5):
        hostile.pin(ROLLOUT, session(number), "control", TTL_S)
    pins.receive_batch(batch_of(hostile), NOW_UNIX_S)
    assert len(pins) == 3


def test_tenant_with_many_sessions_evicts_only_its_own() -> None:
    pins = SessionPins(Clock(), max_pins=200)
    theirs = [session_hash(TenantId("globex"), f"s{number}") for number in range(50)]
    for hash_ in theirs:
        pins.pin(ROLLOUT, hash_, "control", TTL_S)
    for number in range(1000):
        pins.pin(ROLLOUT, session(number), "control", TTL_S)
    assert {pins.group_of(ROLLOUT, hash_) for hash_ in theirs} == {"control"}
    assert len(pins) <= 200 and pins.group_of(ROLLOUT, session(999)) == "control"


def test_batches_are_bounded_and_lose_nothing() -> None:
    pins = SessionPins(Clock())
    wanted = {session(number) for number in range(MAX_SESSIONS_PER_BATCH + 10)}
    for hash_ in wanted:
        pins.pin(ROLLOUT, hash_, "control", TTL_S)
    first, second = published(pins), published(pins)
    assert (len(first), len(second)) == (MAX_SESSIONS_PER_BATCH, 10)
    assert {*first, *second} == wanted and published(pins) == []
    for number in range(MAX_ROLLOUTS_PER_BATCH + 5):
        pins.pin(RolloutId(f"ro-{number:08}"), ONE, "control", TTL_S)
    assert [len(pins.to_publish()), len(pins.to_publish())] == [MAX_ROLLOUTS_PER_BATCH, 5]


def test_failed_pin_publish_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = SessionPins(Clock())
    for number in range(5):
        pins.pin(ROLLOUT, session(number), "control", TTL_S)
    pins.publish_failed(pins.to_publish())
    assert pins.unpublished == 5 and len(published(pins)) == 5
    monkeypatch.setattr(pins_module, "MAX_UNPUBLISHED", 3)
    for number in range(5, 10):
        pins.pin(ROLLOUT, session(number), "control", TTL_S)
    assert (pins.unpublished, pins.lost_total) == (3, 2)
