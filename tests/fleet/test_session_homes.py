"""Encoded batches of session homes."""

import pytest

from functions.api.ids import PoolName, ReplicaId, TenantId
from functions.decisions.routing.sessions import session_hash
from functions.fleet import session_homes
from functions.fleet.session_hashes import MAX_TTL_S
from functions.fleet.session_homes import (
    BATCH_MAX_BYTES,
    MAX_PLACES_PER_BATCH,
    MAX_SESSIONS_PER_BATCH,
    HomeBatch,
    HomesInvalid,
    hashes_in,
    sessions_at,
)

POOL = PoolName("base")
HASHES = [session_hash(TenantId("acme"), str(number)) for number in range(MAX_SESSIONS_PER_BATCH)]


def test_a_full_batch_comes_back_as_it_was_and_within_its_bound() -> None:
    """The batch has the most replicas, the longest pod names and the most sessions allowed."""
    part = MAX_SESSIONS_PER_BATCH // MAX_PLACES_PER_BATCH
    homes = tuple(
        sessions_at(POOL, ReplicaId(f"{number:0>253}"), 300.0, HASHES[number * part : (number + 1) * part])
        for number in range(MAX_PLACES_PER_BATCH)
    )
    batch = HomeBatch("gw-1", 5.0, homes)
    message = session_homes.encode(batch)
    assert len(message) <= BATCH_MAX_BYTES
    assert session_homes.decode(message) == batch
    assert [each for entry in batch.homes for each in hashes_in(entry)] == HASHES


def test_a_time_above_the_most_is_cut_to_it() -> None:
    assert sessions_at(POOL, ReplicaId("r"), 1e9, []).ttl_s == MAX_TTL_S


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        b" " * (BATCH_MAX_BYTES + 1),
        b'{"gateway_id":"a b","sent_unix_s":1,"homes":[]}',
        b'{"gateway_id":"a","sent_unix_s":1,"homes":[{"pool":"","replica":"r","ttl_s":1,"hashes":""}]}',
        b'{"gateway_id":"a","sent_unix_s":1,"homes":[{"pool":"p","replica":"r","ttl_s":-1,"hashes":""}]}',
        b'{"gateway_id":"a","sent_unix_s":1,"homes":[{"pool":"p","replica":"r","ttl_s":1e9,"hashes":""}]}',
        b'{"gateway_id":"a","sent_unix_s":1,"homes":[],"more":1}',
    ],
)
def test_bytes_that_are_no_batch(message: bytes) -> None:
    with pytest.raises(HomesInvalid):
        session_homes.decode(message)


@pytest.mark.parametrize("text", ["AAAA", "not base64!", "AAAAAAAAAAA", "=" * 12])
def test_a_text_that_spells_no_hashes(text: str) -> None:
    with pytest.raises(HomesInvalid):
        hashes_in(session_homes.SessionsAt("p", "r", 1.0, text))
