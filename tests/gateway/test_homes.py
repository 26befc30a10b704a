"""SessionHomes: what is known of a conversation's replica, for how long, and what is published to other gateways."""

import pytest

from functions.api.ids import PoolName, ReplicaId, TenantId
from functions.decisions.routing.sessions import session_hash
from functions.fleet.session_homes import MAX_PLACES_PER_BATCH, HomeBatch, HomesInvalid, hashes_in
from functions.gateway.routing import homes as module
from functions.gateway.routing.homes import SessionHomes
from tests.gateway.rig import NOW_UNIX_S, Clock

POOL, OTHER_POOL = PoolName("base"), PoolName("other")
A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
TTL_S = 300.0


def conversation(number: int, tenant: str = "acme") -> bytes:
    return session_hash(TenantId(tenant), f"s{number}")


ONE = conversation(1)


def batch_of(homes: SessionHomes, sent_unix_s: float = NOW_UNIX_S) -> HomeBatch:
    return HomeBatch("other", sent_unix_s, tuple(homes.to_publish()))


def home(homes: SessionHomes, key: bytes = ONE, pool: PoolName = POOL) -> tuple[ReplicaId, bool] | None:
    found = homes.home_of(pool, key)
    return (found.replica_id, found.is_seen) if found is not None else None


def published(homes: SessionHomes) -> list[tuple[str, bytes]]:
    return [(entry.replica, hashed) for entry in homes.to_publish() for hashed in hashes_in(entry)]


def test_home_expires_after_its_ttl_since_the_last_turn() -> None:
    clock = Clock()
    homes = SessionHomes(clock)
    homes.record_sent(POOL, ONE, A, A, TTL_S)
    clock.forward(200.0)
    assert home(homes) == (A, True) and home(homes, ONE, OTHER_POOL) is None
    homes.record_sent(POOL, ONE, A, A, TTL_S)
    clock.forward(299.0)
    assert home(homes) == (A, True)
    clock.forward(1.0)
    assert home(homes) is None
    homes.expire()
    assert len(homes) == 0


def test_a_policy_without_session_time_remembers_nothing() -> None:
    homes = SessionHomes(Clock())
    homes.record_sent(POOL, ONE, A, B, 0.0)
    assert len(homes) == 0 and published(homes) == []


def test_tenant_with_many_conversations_evicts_its_own() -> None:
    homes = SessionHomes(Clock(), max_homes=64)
    homes.record_sent(POOL, conversation(0, "globex"), B, B, TTL_S)
    for number in range(1000):
        homes.record_sent(POOL, conversation(number), A, A, TTL_S)
    assert len(homes) <= 64 and home(homes, conversation(0, "globex")) == (B, True)


def test_only_homes_that_differ_from_the_hash_are_published() -> None:
    ours, theirs = SessionHomes(Clock()), SessionHomes(Clock())
    ours.record_sent(POOL, ONE, A, A, TTL_S)
    assert published(ours) == [], "where all assume it"
    ours.record_sent(POOL, ONE, B, A, TTL_S)
    theirs.receive_batch(batch_of(ours), NOW_UNIX_S)
    assert home(theirs) == (B, False)
    assert published(theirs) == [], "what was heard is not told again"


def test_conversation_that_returns_to_its_hash_home_is_published() -> None:
    clock = Clock()
    ours, theirs = SessionHomes(clock), SessionHomes(clock)
    ours.record_sent(POOL, ONE, B, A, TTL_S)
    theirs.receive_batch(batch_of(ours), NOW_UNIX_S)
    clock.forward(1.0)
    theirs.record_sent(POOL, ONE, A, A, TTL_S)
    ours.receive_batch(batch_of(theirs, NOW_UNIX_S + 1.0), NOW_UNIX_S + 1.0)
    assert home(ours) == (A, False)


def test_exception_is_republished_halfway_through_its_ttl() -> None:
    clock = Clock(0.0)
    homes = SessionHomes(clock)
    at_s = []
    for now_s in (0, 100, 160, 200, 309, 320):
        clock.now_s = float(now_s)
        homes.record_sent(POOL, ONE, B, A, TTL_S)
        at_s += [now_s] * len(published(homes))
    assert at_s == [0, 160, 320]


def test_conversation_that_stays_is_published_after_a_replica_joins() -> None:
    homes = SessionHomes(Clock())
    homes.record_sent(POOL, ONE, A, A, TTL_S)
    homes.record_sent(POOL, ONE, A, C, TTL_S)
    assert published(homes) == [("a", ONE)]


def test_latest_message_wins_whatever_the_order() -> None:
    clock = Clock()
    homes = SessionHomes(clock)
    early, late = SessionHomes(clock), SessionHomes(clock)
    early.record_sent(POOL, ONE, B, A, TTL_S)
    late.record_sent(POOL, ONE, C, A, TTL_S)
    clock.forward(10.0)
    now_unix_s = NOW_UNIX_S + 10.0
    homes.receive_batch(batch_of(late, now_unix_s - 1.0), now_unix_s)
    homes.receive_batch(batch_of(early, now_unix_s - 5.0), now_unix_s)
    assert home(homes) == (C, False)
    homes.record_sent(POOL, ONE, A, A, TTL_S)
    late.record_sent(POOL, ONE, C, A, TTL_S)
    late.publish_failed([])
    homes.receive_batch(HomeBatch("other", now_unix_s - 0.5, batch_of(early).homes), now_unix_s)
    assert home(homes) == (A, True), "our own is later"


def test_failed_publish_is_repeated_unless_outdated() -> None:
    homes, theirs = SessionHomes(Clock()), SessionHomes(Clock())
    homes.record_sent(POOL, ONE, B, A, TTL_S)
    homes.record_sent(POOL, conversation(2), B, A, TTL_S)
    batch = homes.to_publish()
    homes.record_sent(POOL, ONE, C, A, TTL_S)
    homes.publish_failed(batch)
    theirs.receive_batch(batch_of(homes), NOW_UNIX_S)
    assert (home(theirs), home(theirs, conversation(2))) == ((C, False), (B, False))


def test_unpublished_homes_over_the_bound_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNPUBLISHED", 8)
    homes = SessionHomes(Clock())
    for number in range(10):
        homes.record_sent(POOL, conversation(number), B, A, TTL_S)
    assert (homes.unpublished, homes.lost_total) == (8, 2)


def test_batch_size_is_bounded_and_the_rest_follows() -> None:
    homes, theirs = SessionHomes(Clock()), SessionHomes(Clock())
    count = MAX_PLACES_PER_BATCH + 5
    for number in range(count):
        homes.record_sent(POOL, conversation(number), ReplicaId(f"r{number}"), A, TTL_S)
    batches = [batch_of(homes), batch_of(homes)]
    assert [len(batch.homes) for batch in batches] == [MAX_PLACES_PER_BATCH, 5]
    for batch in batches:
        theirs.receive_batch(batch, NOW_UNIX_S)
    assert len(theirs) == count and homes.to_publish() == []


def test_old_batch_counts_for_its_remaining_ttl() -> None:
    clock = Clock()
    ours, theirs = SessionHomes(clock), SessionHomes(clock)
    ours.record_sent(POOL, ONE, B, A, TTL_S)
    batch = batch_of(ours)
    theirs.receive_batch(batch, NOW_UNIX_S + TTL_S - 1.0)
    assert home(theirs) is not None
    clock.forward(1.0)
    assert home(theirs) is None
    theirs.receive_batch(batch, NOW_UNIX_S + TTL_S)
    assert home(theirs) is None


def test_malformed_hashes_are_refused() -> None:
    homes = SessionHomes(Clock())
    homes.record_sent(POOL, ONE, B, A, TTL_S)
    (entry,) = homes.to_publish()
    broken = type(entry)(entry.pool, entry.replica, entry.ttl_s, "AAAA")
    with pytest.raises(HomesInvalid):
        homes.receive_batch(HomeBatch("other", NOW_UNIX_S, (broken,)), NOW_UNIX_S)
