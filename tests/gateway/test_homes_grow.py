"""Homes while a pool grows: a new replica gets its share of new conversations and none of the running ones."""

from dataclasses import replace

import msgspec
import pytest

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.candidates import SCAN_MAX
from functions.decisions.routing.homes import SETTLES_S, assumed_home
from functions.decisions.routing.replicas import EVERY, PoolIndex
from functions.gateway.routing.homes import SessionHomes
from tests.decisions.routing.test_routing import replica
from tests.gateway.hello import Playing
from tests.gateway.rig import NOW_UNIX_S, Clock
from tests.gateway.test_homes import TTL_S, batch_of, conversation, published

POOL = PoolName("base")
BASE, ADAPTER = EngineName("base"), EngineName("acme/bot@sha256:1")
A, B = ReplicaId("a"), ReplicaId("b")
NUMBERS = range(40)


def at(key: bytes, index: PoolIndex, *, settled: bool = True) -> ReplicaId:
    found = assumed_home(key.hex(), index, BASE, is_adapter=False, settled=settled)
    assert found is not None
    return found


def grown(size: int = 2) -> PoolIndex:
    """Return an index with one replica that has just become ready, as seen by a gateway that knew it while it
    started."""
    index = PoolIndex(replica(f"r{number:03d}") for number in range(size))
    index.changed.clear()
    starting = replica("new", phase="starting")
    index.put(None, starting)
    index.put(starting, replace(starting, phase="ready"))
    return index


@pytest.mark.parametrize("size", [2, SCAN_MAX, 100])
def test_fresh_replica_is_no_conversations_home(size: int) -> None:
    index, keys = grown(size), [conversation(number) for number in range(400)]
    assert index.changed == {EVERY}
    assert "new" not in {at(key, index) for key in keys} and "new" in {at(key, index, settled=False) for key in keys}
    before = PoolIndex(replica(f"r{number:03d}") for number in range(size))
    if size != SCAN_MAX:  # where hashing becomes a ring, all conversations move
        assert all(at(key, index) == at(key, before) for key in keys)
    index.fresh.clear()
    assert "new" in {at(key, index) for key in keys}


def test_pool_of_fresh_replicas_has_homes_and_a_new_gateway_has_none_fresh() -> None:
    starting = replica("a", phase="starting")
    index = PoolIndex([starting])
    index.put(starting, replica("a"))
    assert at(conversation(1), index) == "a"
    assert PoolIndex([replica("a"), replica("b")]).fresh == {}
    gone = grown()
    gone.drop(replica("new"))
    assert gone.fresh == {}


def test_joining_replica_gets_no_running_conversation() -> None:
    """A gateway that had not seen the conversation looked for it at the new replica and counted nearly all of it as
    cached."""
    clock, index = Clock(), grown()
    ours, theirs = SessionHomes(clock), SessionHomes(clock)
    for number in NUMBERS:
        ours.record_sent(
            POOL, conversation(number), at(conversation(number), index), at(conversation(number), index), TTL_S
        )
    assert published(ours) == []
    ours.recheck(POOL, index.changed)
    ours.publish_moved(lambda pool, key, name: at(key, index, settled=False))
    batch = batch_of(ours)
    theirs.receive_batch(batch, NOW_UNIX_S)
    index.fresh.clear()
    for number in NUMBERS:
        key = conversation(number)
        heard = theirs.home_of(POOL, key)
        assert (heard.replica_id if heard is not None else at(key, index)) != "new"
        assert (heard is not None) == (at(key, index) == "new"), "the others need no word"
    assert 5 < len(theirs) < 25
    ours.recheck(POOL, {EVERY})
    ours.publish_moved(lambda pool, key, name: at(key, index, settled=False))
    assert published(ours) == [], "once"


def test_recheck_covers_only_own_conversations_of_the_adapter() -> None:
    homes = SessionHomes(Clock())
    for number, name in enumerate((ADAPTER, EVERY, ADAPTER)):
        homes.record_sent(POOL, conversation(number), A, A, TTL_S, name)
    other = SessionHomes(Clock())
    other.record_sent(POOL, conversation(2), B, A, TTL_S)
    homes.receive_batch(batch_of(other), NOW_UNIX_S)
    looked_at: list[bytes] = []

    def assumed(pool: PoolName, key: bytes, name: EngineName) -> ReplicaId:
        looked_at.append(key)
        return B

    homes.recheck(POOL, {ADAPTER})
    homes.recheck(PoolName("other"), {EVERY})
    homes.publish_moved(assumed)
    assert looked_at == [conversation(0)]
    assert published(homes) == [("a", conversation(0))]


async def test_gateway_publishes_its_conversations_when_a_replica_joins(play: Playing) -> None:
    p = play("r0", "r1")
    router, fleet = p.gateway.services.router, p.gateway.services.fleet
    p.gateway.sweep()
    for number in NUMBERS:
        p.ask(stream=True, session_id=f"chat-{number}").client_left()
    router.homes.to_publish()
    known = next(iter(fleet.heartbeats()))[0]
    for sequence, phase in enumerate(("starting", "ready"), 1):
        joins = {"replica_id": "r2", "phase": phase, "sequence": sequence}
        fleet.fold(msgspec.structs.replace(known, **joins), p.rig.clock())
    (index,) = [index for _, index in fleet.indexes() if "r2" in index.ready]
    assert set(index.fresh) == {"r2"}
    p.gateway.sweep()
    assert router.homes.unpublished > 0
    p.after(SETTLES_S)
    p.gateway.sweep()
    assert index.fresh == {}
