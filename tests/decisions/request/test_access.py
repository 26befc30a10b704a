"""Authentication: a valid key passes, and all failures look the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import keys
from functions.api.ids import KeyId, TenantId
from functions.api.snapshot import KeyEntry, Snapshot, TenantEntry
from functions.decisions.catalogue import Catalogue
from functions.decisions.request.access import Caller, authenticate

PEPPER = b"pepper"
KEY = keys.mint("demo", "ci", bytes(range(32)))
SAME_ID = keys.mint("demo", "ci", bytes(32))
OTHER_ID = keys.mint("demo", "cd", bytes(range(32)))
EXPIRES_UNIX_S = 1000.0


def catalogue(expires_unix_s: float | None = None) -> Catalogue:
    parsed = keys.parse(KEY)
    assert parsed is not None
    entry = KeyEntry(
        key_id=KeyId("ci"),
        tenant=TenantId("acme"),
        hmac_sha256=keys.keyed_hash(PEPPER, parsed.secret),
        scopes=("inference",),
        max_class="batch",
        expires_unix_s=expires_unix_s,
    )
    tenants = (TenantEntry(TenantId("acme"), "t", ("*",)),)
    return Catalogue(Snapshot(1, 1, "", 0.0, tenants, (entry,), (), ()), "sha256:x")


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "])
def test_valid_key_identifies_the_caller(header: str) -> None:
    caller = authenticate(catalogue(), header, PEPPER, 0.0)
    assert caller == Caller(TenantId("acme"), KeyId("ci"), ("inference",), "batch")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer{KEY}", f"Bearer {SAME_ID}", f"Bearer {OTHER_ID}",
     f"Bearer {KEY[:-1]}", f"Bearer {KEY} {KEY}", "Bearer " + "a" * 10_000, "Bearer \xff"],
)  # fmt: skip
def test_any_other_header_is_rejected(header: str | None) -> None:
    assert authenticate(catalogue(), header, PEPPER, 0.0) is None


def test_another_pepper_makes_every_key_unknown() -> None:
    assert authenticate(catalogue(), f"Bearer {KEY}", b"other", 0.0) is None


def test_a_key_works_until_the_moment_it_expires() -> None:
    held = catalogue(EXPIRES_UNIX_S)
    assert authenticate(held, f"Bearer {KEY}", PEPPER, EXPIRES_UNIX_S - 0.001) is not None
    assert authenticate(held, f"Bearer {KEY}", PEPPER, EXPIRES_UNIX_S) is None


@settings(deadline=None)
@given(st.text(max_size=200))
def test_authentication_never_raises(header: str) -> None:
    assert authenticate(catalogue(), header, PEPPER, 0.0) is None
    assert authenticate(catalogue(), "Bearer " + header, PEPPER, 0.0) is None
