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
def test_known_keys_agree_with_authenticate(authorization: str | None) -> None:
    keys = KnownKeys(PEPPER)
    expected = authenticate(CATALOGUE, authorization, PEPPER, NOW_UNIX_S)
    keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S)
    for _ in range(3):
        assert keys.caller(CATALOGUE, authorization, NOW_UNIX_S) == expected


def test_known_key_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KnownKeys(PEPPER)
    caller = keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S)
    monkeypatch.setattr(known_keys, "authenticate", None)
    assert caller is not None and keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S) is caller


def test_revoked_key_is_refused_with_the_next_snapshot() -> None:
    keys = KnownKeys(PEPPER)
    assert keys.caller(CATALOGUE, "Bearer " + ACME_KEY, NOW_UNIX_S) is not None
    without = rig.catalogue(epoch=2, keys=(rig.key_entry(GLOBEX_KEY, "globex"),))
    assert keys.caller(without, "Bearer " + ACME_KEY, NOW_UNIX_S) is None


def test_moved_key_belongs_to_its_new_tenant() -> None:
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


def test_known_keys_store_only_hashes_of_valid_keys_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_MAX_KNOWN", 3)
    keys = KnownKeys(PEPPER)
    for number in range(50):
        keys.caller(CATALOGUE, f"Bearer {ACME_KEY[:-1]}{number}", NOW_UNIX_S)
    assert keys._known == {}
    for spaces in range(10):
        assert keys.caller(CATALOGUE, "Bearer " + " " * spaces + ACME_KEY, NOW_UNIX_S) is not None
        assert 0 < len(keys._known) <= 3
    assert not any(ACME_KEY[20:40].encode() in name for name in keys._known)
