"""Encoded batches of session pins."""

import pytest

from functions.api.ids import RolloutId, TenantId
from functions.decisions.routing.sessions import session_hash
from functions.fleet import session_pins
from functions.fleet.session_hashes import MAX_TTL_S
from functions.fleet.session_pins import (
    BATCH_MAX_BYTES,
    MAX_SESSIONS_PER_BATCH,
    BatchInvalid,
    PinBatch,
    RolloutPins,
    hashes_in,
    pins_of,
)

ROLLOUT = RolloutId("ro-00000001")
ACME = TenantId("acme")


def test_a_full_batch_comes_back_as_it_was_and_within_its_bound() -> None:
    hashes = [session_hash(ACME, str(number)) for number in range(MAX_SESSIONS_PER_BATCH)]
    batch = PinBatch("gw-1", 5.0, (pins_of(ROLLOUT, 300.0, hashes),))
    message = session_pins.encode(batch)
    assert len(message) <= BATCH_MAX_BYTES
    assert session_pins.decode(message) == batch
    assert hashes_in(batch.pins[0]) == hashes and len(set(hashes)) == MAX_SESSIONS_PER_BATCH


def test_a_session_is_its_tenants_own() -> None:
    assert session_hash(ACME, "s1") == session_hash(ACME, "s1")
    assert len({session_hash(ACME, "s1"), session_hash(ACME, "s2"), session_hash(TenantId("globex"), "s1")}) == 3
    session_hash(ACME, "\ud800")  # valid in JSON but not in UTF-8


def test_a_time_above_the_most_is_cut_to_it() -> None:
    assert pins_of(ROLLOUT, 1e9, []).ttl_s == MAX_TTL_S


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        b" " * (BATCH_MAX_BYTES + 1),
        b'{"gateway_id":"a b","sent_unix_s":1,"pins":[]}',
        b'{"gateway_id":"a","sent_unix_s":1,"pins":[{"rollout":"x","ttl_s":1,"hashes":""}]}',
        b'{"gateway_id":"a","sent_unix_s":1,"pins":[{"rollout":"ro-00000001","ttl_s":-1,"hashes":""}]}',
        b'{"gateway_id":"a","sent_unix_s":1,"pins":[{"rollout":"ro-00000001","ttl_s":1e9,"hashes":""}]}',
        b'{"gateway_id":"a","sent_unix_s":1,"pins":[],"more":1}',
    ],
)
def test_bytes_that_are_no_batch(message: bytes) -> None:
    with pytest.raises(BatchInvalid):
        session_pins.decode(message)


@pytest.mark.parametrize("text", ["AAAA", "not base64!", "AAAAAAAAAAA", "=" * 12])
def test_a_text_that_spells_no_hashes(text: str) -> None:
    with pytest.raises(BatchInvalid):
        hashes_in(RolloutPins(ROLLOUT, 1.0, text))
