"""API keys: created and shown once, revoked for good."""

from typing import Any

import pytest

from functions.api import keys
from tests.registry.catalogue_rig import PEPPER, Rig
from tests.registry.rig import error_of

PATH = "/v1/tenants/acme/keys"


async def test_key_is_shown_once_and_the_controller_reads_its_hash(catalogue: Rig) -> None:
    body = {"id": "ci", "scopes": ["inference", "models:write"], "max_class": "batch", "expires": "2027-06-30"}
    made = await catalogue.call("POST", PATH, json=body)
    assert made.status_code == 201
    parsed = keys.parse(made.json()["key"])
    assert parsed is not None and parsed.key_id == "ci"
    (row,) = (await catalogue.get("/internal/v1/changes"))["keys"]
    assert row["hmac_sha256"] == keys.keyed_hash(PEPPER, parsed.secret)
    assert (row["tenant"], row["scopes"], row["max_class"], row["revoked"]) == (
        "acme",
        ["inference", "models:write"],
        "batch",
        False,
    )
    assert row["expires_unix_s"] == 1_814_400_000.0  # start of 1 July 2027
    (shown,) = (await catalogue.get(PATH))["data"]
    assert "key" not in shown and "hmac_sha256" not in shown


async def test_controller_reads_the_limits_of_a_key(catalogue: Rig) -> None:
    made = await catalogue.call("POST", PATH, json={"id": "ci", "limits": {"requests_per_minute": 60}})
    assert made.status_code == 201
    limits = {"requests_per_minute": 60, "token_burst_seconds": 10}
    assert made.json()["limits"] == limits
    await catalogue.call("POST", PATH, json={"id": "plain", "limits": {}})
    rows = (await catalogue.get("/internal/v1/changes"))["keys"]
    assert [row["limits"] for row in rows] == [limits, None]
    assert [row["limits"] for row in (await catalogue.get(PATH))["data"]] == [limits, None]


async def test_missing_key_id_is_generated(catalogue: Rig) -> None:
    one, two = [(await catalogue.call("POST", PATH)).json() for _ in range(2)]
    assert one["id"] != two["id"]
    assert keys.parse(one["key"]) is not None


async def test_key_id_is_unique_in_the_installation(catalogue: Rig) -> None:
    await catalogue.call("POST", PATH, json={"id": "ci"})
    await catalogue.call("DELETE", PATH + "/ci")
    for tenant, taken in (("acme", "ci"), ("globex", "ci"), ("globex", "acme-writer")):
        refused = await catalogue.call("POST", f"/v1/tenants/{tenant}/keys", json={"id": taken})
        assert (refused.status_code, error_of(refused)["code"]) == (409, "key_exists")


async def test_revoking_a_key_is_idempotent(catalogue: Rig) -> None:
    await catalogue.call("POST", PATH, json={"id": "ci"})
    assert (await catalogue.call("DELETE", "/v1/tenants/globex/keys/ci")).status_code == 404
    for _ in range(2):
        assert (await catalogue.call("DELETE", PATH + "/ci")).status_code == 204
    assert await catalogue.audited() == ["key.created", "key.revoked"]


async def test_key_declared_in_git_cannot_be_revoked_here(catalogue: Rig) -> None:
    refused = await catalogue.call("DELETE", PATH + "/acme-writer")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "declared_in_git")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "a b"}, "invalid_key_id"),
        ({"id": "x" * 33}, "invalid_body"),
        ({"scopes": []}, "invalid_body"),
        ({"scopes": ["root"]}, "invalid_body"),
        ({"max_class": "best"}, "invalid_body"),
        ({"expires": "tomorrow"}, "invalid_expiry"),
        ({"key": "mine"}, "invalid_body"),
        ({"limits": {"requestsPerMinute": 1}}, "invalid_body"),
        ({"limits": {"requests_per_minute": 0}}, "invalid_body"),
        ({"limits": {"requests_per_minute": 1.5}}, "invalid_body"),
        ({"limits": {"requests_per_minute": 10**13}}, "invalid_body"),
    ],
)
async def test_invalid_key_bodies_are_refused(catalogue: Rig, body: dict[str, Any], code: str) -> None:
    refused = await catalogue.call("POST", PATH, json=body)
    assert (refused.status_code, error_of(refused)["code"]) == (400, code)
    assert await catalogue.audited() == []


async def test_undeclared_tenant_gets_no_key(catalogue: Rig) -> None:
    refused = await catalogue.call("POST", "/v1/tenants/nobody/keys")
    assert (refused.status_code, error_of(refused)["code"]) == (404, "tenant_not_found")


async def test_valid_keys_per_tenant_are_bounded(catalogue: Rig) -> None:
    for number in range(3):
        assert (await catalogue.call("POST", PATH, json={"id": f"k{number}"})).status_code == 201
    full = await catalogue.call("POST", PATH)
    assert (full.status_code, error_of(full)["code"]) == (409, "too_many_keys")
    await catalogue.call("DELETE", PATH + "/k0")
    assert (await catalogue.call("POST", PATH)).status_code == 201


async def test_keys_are_listed_in_pages(catalogue: Rig) -> None:
    for number in range(3):
        await catalogue.call("POST", PATH, json={"id": f"k{number}"})
    page = await catalogue.get(PATH, limit=2)
    assert ([row["id"] for row in page["data"]], page["next_after"]) == (["k0", "k1"], "k1")
    assert [row["id"] for row in (await catalogue.get(PATH, after="k1"))["data"]] == ["k2"]
