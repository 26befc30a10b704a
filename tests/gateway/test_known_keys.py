"""KnownKeys: the same answers as the proof itself, faster."""

import pytest

from functions.api.ids import KeyId
from functions.decisions.request.access import authenticate
from functions.gateway.intake import auth as known_keys
from functions.gateway.intake.auth import KnownKeys
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, GLOBEX_KEY, IMPOSTOR_KEY, NOW_UNIX_S, PEPPER, REVOKED_KEY

CATALOGUE = rig.catalogue()
HEADERS = [
    None,
    "",
    "Bearer " + ACME_KEY,
    "bearer " + ACME_KEY,
    "Bearer  " + ACME_KEY,
    "Bearer " + GLOBEX_KEY,
    "Bearer " + IMPOSTOR_KEY,
    "Bearer " + REVOKED_KEY,
    "Bearer " + rig.EXPIRED_KEY,
    "Bearer " + ACME_KEY[:-1],
    "Basic " + ACME_KEY,
    ACME_KEY,
    "Bearer \u00e9",
]


@pytest.mark.parametrize("authorization", HEADERS)
def test_says_what_the_proof_says_the_first_time_and_ever_after(authorization: str | None) -> None:
    keys = KnownKeys(PEPPER)
    expected = authenticate(CATALOGUE, authorization, PEPPER, NOW_UNIX_S)
    keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S)
    for _ in range(3):
        assert keys.caller(CATALOGUE, authorization, NOW_UNIX_S) == expected


def test_a_known_key_is_not_put_to_the_proof_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KnownKeys(PEPPER)
    caller = keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S)
    monkeypatch.setattr(known_keys, "authenticate", None)
    assert caller is not None and keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S) is caller


def test_a_key_that_was_revoked_ends_with_the_snapshot_that_knew_it() -> None:
    keys = KnownKeys(PEPPER)
    assert keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S) is not None
    without = rig.catalogue(epoch=2, keys=(rig.key_entry(GLOBEX_KEY, "globex"),))
    assert keys.caller(without, "Bearer " + ACME_KEY, NOW_UNIX_S) is None


def test_a_key_that_changed_hands_is_its_new_tenants() -> None:
    keys = KnownKeys(PEPPER)
    keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S)
    moved = rig.catalogue(epoch=2, keys=(rig.key_entry(ACME_KEY, "globex"),))
    caller = keys.caller(moved, "Bearer " + ACME_KEY, NOW_UNIX_S)
    assert caller is not None and (caller.tenant, caller.key_id) == ("globex", KeyId("acme-ci"))


def test_a_known_key_expires_on_the_second() -> None:
    keys = KnownKeys(PEPPER)
    until = rig.catalogue(keys=(rig.key_entry(ACME_KEY, "acme", expires_unix_s=NOW_UNIX_S + 10),))
    for now_unix_s, is_known in ((NOW_UNIX_S, True), (NOW_UNIX_S + 9.9, True), (NOW_UNIX_S + 10, False)):
        assert (keys.caller(until, "Bearer " + ACME_KEY, now_unix_s) is not None) is is_known


def test_only_right_keys_are_remembered_never_as_they_are_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_MAX_KNOWN", 3)
    keys = KnownKeys(PEPPER)
    for number in range(50):
        keys.caller(CATALOGUE, f"Bearer {ACME_KEY[:-1]}{number}", NOW_UNIX_S)
    assert keys._known == {}
    for spaces in range(10):
        assert keys.caller(CATALOGUE, "Bearer " + " " * spaces + ACME_KEY, NOW_UNIX_S) is not None
        assert 0 < len(keys._known) <= 3
    assert not any(ACME_KEY[20:40].encode() in name for name in keys._known)
