"""Tenant isolation: a key manages only its own tenant's models; models of others do not exist for it."""

from typing import Any

import pytest

from functions.api import keys
from tests.registry.catalogue_rig import ENTROPY, PEPPER, Rig, digest, key_text
from tests.registry.rig import TOKEN, error_of


async def test_tenant_key_creates_and_moves_its_own_models(catalogue: Rig) -> None:
    assert (await catalogue.put("v1", "c", who="acme-writer", promote_to="stable")).status_code == 201
    assert (await catalogue.put("v2", "d", who="acme-writer")).status_code == 201
    rollout = (await catalogue.point("v2", who="acme-writer")).json()["rollout"]["id"]
    assert (await catalogue.call("POST", f"/v1/rollouts/{rollout}/rollback", "acme-writer")).status_code == 200
    last = (await catalogue.get("/v1/audit", limit=1))["data"][0]
    assert (last["actor"], last["tenant"]) == ("key:acme-writer", "acme")


async def test_models_of_a_tenant_do_not_exist_for_another(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    artifact = catalogue.artifact("e")
    before = await catalogue.audited()
    globex = "globex-writer"
    attempts: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", "/v1/models/acme/bot", None),
        ("GET", "/v1/models/acme/bot/versions", None),
        ("GET", "/v1/models/acme/declared", None),
        ("PUT", "/v1/models/acme/bot/versions/v9", {"digest": digest("c"), "base_model": "base"}),
        ("PUT", "/v1/models/globex/own/versions/v1", {"digest": artifact, "base_model": "base"}),
        ("POST", "/v1/models/acme/bot/channels/stable", {"version": "v1"}),
        ("DELETE", "/v1/models/acme/bot", None),
        ("DELETE", "/v1/models/acme/bot/versions/v2", None),
        ("DELETE", "/v1/models/acme/bot/channels/stable", None),
        ("GET", f"/v1/rollouts/{rollout}", None),
        ("POST", f"/v1/rollouts/{rollout}/rollback", None),
        ("GET", f"/v1/artifacts/{artifact}", None),
    ]
    for method, path, body in attempts:
        refused = await catalogue.call(method, path, globex, json=body)
        assert refused.status_code == 404, (method, path, refused.text)
        nowhere = await catalogue.call(method, path.replace("acme/", "none/"), globex, json=body)
        assert nowhere.status_code == 404  # the answer is the same as for a missing object
    assert [model["id"] for model in (await catalogue.get("/v1/models", globex))["data"]] == ["base"]
    assert (await catalogue.get("/v1/rollouts", globex))["data"] == []
    assert (await catalogue.get("/v1/rollouts", globex, model="acme/bot"))["data"] == []
    assert await catalogue.audited() == before


async def test_tenant_lists_its_own_and_callable_models(catalogue: Rig) -> None:
    await catalogue.put("v1", "c")
    await catalogue.put("v1", "c", "globex/own")
    assert [row["id"] for row in (await catalogue.get("/v1/models", "acme-reader"))["data"]] == [
        "acme/bot",
        "acme/declared",
        "base",
    ]
    assert (await catalogue.get("/v1/artifacts/" + digest("c"), "acme-reader"))["tenant"] == "acme"


@pytest.mark.parametrize("who", ["acme-reader", "acme-plain"])
async def test_writes_need_the_write_scope(catalogue: Rig, who: str) -> None:
    await catalogue.put("v1", "c")
    for refused in (
        await catalogue.put("v2", "d", who=who),
        await catalogue.point("v1", who=who),
        await catalogue.call("DELETE", "/v1/models/acme/bot", who),
        await catalogue.call("POST", "/v1/artifacts", who),
    ):
        assert (refused.status_code, error_of(refused)["code"]) == (403, "scope_missing")
        assert "models:write" in error_of(refused)["message"]


async def test_reads_need_the_read_scope(catalogue: Rig) -> None:
    for path in ("/v1/models", "/v1/rollouts", "/v1/artifacts/" + digest("c")):
        refused = await catalogue.call("GET", path, "acme-plain")
        assert (refused.status_code, error_of(refused)["code"]) == (403, "scope_missing")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/audit"),
        ("GET", "/v1/audit/verify"),
        ("POST", "/v1/tenants/acme/keys"),
        ("GET", "/v1/tenants/acme/keys"),
        ("DELETE", "/v1/tenants/acme/keys/ci"),
        ("GET", "/internal/v1/changes"),
        ("PUT", "/internal/v1/rollouts/ro-00000000"),
        ("POST", "/internal/v1/rollouts/ro-00000000/events"),
        ("GET", "/internal/v1/rollouts/ro-00000000/evidence"),
        ("POST", "/internal/v1/gc"),
    ],
)
async def test_operator_routes_are_closed_to_tenants(catalogue: Rig, method: str, path: str) -> None:
    refused = await catalogue.call(method, path, "acme-writer")
    assert (refused.status_code, error_of(refused)["code"]) == (403, "operator_only")


@pytest.mark.parametrize("path", ["/v1/snapshot", "/v1/fleet"])
async def test_tenants_cannot_read_the_snapshot(catalogue: Rig, path: str) -> None:
    assert (await catalogue.call("GET", path, "acme-writer")).status_code == 401


@pytest.mark.parametrize(
    "bearer",
    ["", "wrong", keys.mint("test", "acme-writer", b"9" * 32), key_text("acme-writer").replace("acme", "globex")],
)
async def test_request_without_a_key_is_refused(catalogue: Rig, bearer: str) -> None:
    for method, path in (("GET", "/v1/models"), ("PUT", "/v1/models/acme/bot/versions/v1"), ("GET", "/v1/audit")):
        refused = await catalogue.call(method, path, bearer)
        assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_key")
        assert refused.headers["www-authenticate"] == "Bearer"


async def test_secret_appears_only_in_the_creating_answer(catalogue: Rig, caplog: pytest.LogCaptureFixture) -> None:
    made = await catalogue.call("POST", "/v1/tenants/acme/keys", json={"id": "ci"})
    key = made.json()["key"]
    await catalogue.put("v1", "c", who="acme-writer")
    told = str(await catalogue.get("/v1/audit")) + str(await catalogue.get("/v1/tenants/acme/keys")) + caplog.text
    for secret in (key, key.split("_")[3], TOKEN, PEPPER.decode(), *(key_text(key_id) for key_id in ENTROPY)):
        assert secret not in told
    assert made.headers["cache-control"] == "no-store"
