"""Access to every route by tenant and role; another tenant learns nothing behind it.

A new route needs a line in `DOORS`: the table is compared with the OpenAPI document.
"""

import pytest
from jsonschema import Draft202012Validator

from functions.fleet.role_credentials import Purpose, derived
from tests.registry.catalogue_rig import Rig, digest
from tests.registry.rig import TOKEN

TENANTS = ("acme-plain", "acme-reader", "acme-writer", "globex-writer")
CREDENTIALS: dict[str, Purpose] = {
    "gateway": "follow",
    "agent": "agent",
    "controller": "publish",
    "accounts": "account",
}
CALLERS = ("nobody", *TENANTS, "operator", *CREDENTIALS)
# A route, and the status that each caller of `CALLERS` gets; 0: let in. Another tenant's objects are 404 further in.
ANYBODY = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
READER = (401, 403, 0, 0, 0, 0, 401, 401, 401, 401)
WRITER = (401, 403, 403, 0, 0, 0, 401, 401, 401, 401)
OPERATOR = (401, 403, 403, 403, 403, 0, 401, 401, 401, 401)
CONTROLLER = (401, 403, 403, 403, 403, 0, 401, 401, 0, 401)
GATEWAY = (401, 403, 403, 403, 403, 0, 401, 401, 401, 0)
# Tenants' keys are not checked: these routes need no snapshot.
MEMBERS = (401, 401, 401, 401, 401, 0, 0, 0, 0, 403)
AGENTS = (401, 401, 401, 401, 401, 0, 403, 0, 403, 403)
NEIGHBOURS = (401, 401, 401, 401, 401, 0, 0, 0, 403, 403)
PUBLISHER = (401, 401, 401, 401, 401, 0, 403, 403, 0, 403)

DOORS: dict[tuple[str, str], tuple[int, ...]] = {
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/readyz"): ANYBODY,
    ("GET", "/metrics"): ANYBODY,
    ("PUT", "/v1/fleet/verdicts"): PUBLISHER,
    ("GET", "/v1/snapshot"): MEMBERS,
    ("HEAD", "/v1/snapshot"): MEMBERS,
    ("PUT", "/v1/snapshot"): PUBLISHER,
    ("GET", "/v1/fleet"): PUBLISHER,
    ("GET", "/v1/fleet/pools"): PUBLISHER,
    ("PUT", "/v1/fleet/pools"): PUBLISHER,
    ("GET", "/v1/fleet/zones"): NEIGHBOURS,
    ("PUT", "/v1/fleet/zones"): PUBLISHER,
    ("POST", "/internal/v1/swarm/{digest}"): AGENTS,
    ("GET", "/internal/v1/swarm"): AGENTS,
    ("GET", "/internal/v1/weights/{name}/{version}"): AGENTS,
    ("GET", "/internal/v1/changes"): CONTROLLER,
    ("PUT", "/internal/v1/rollouts/{rollout}"): CONTROLLER,
    ("POST", "/internal/v1/rollouts/{rollout}/events"): CONTROLLER,
    ("GET", "/internal/v1/rollouts/{rollout}/evidence"): CONTROLLER,
    ("POST", "/internal/v1/usage"): GATEWAY,
    ("GET", "/v1/usage"): READER,
    ("GET", "/v1/usage/pools"): OPERATOR,
    ("POST", "/internal/v1/gc"): OPERATOR,
    ("GET", "/v1/models"): READER,
    ("GET", "/v1/models/{name}"): READER,
    ("GET", "/v1/models/{tenant}/{name}"): READER,
    ("GET", "/v1/models/{tenant}/{name}/versions"): READER,
    ("PUT", "/v1/models/{tenant}/{name}/versions/{version}"): WRITER,
    ("POST", "/v1/models/{tenant}/{name}/channels/{channel}"): WRITER,
    ("DELETE", "/v1/models/{tenant}/{name}/versions/{version}"): WRITER,
    ("DELETE", "/v1/models/{tenant}/{name}/channels/{channel}"): WRITER,
    ("DELETE", "/v1/models/{tenant}/{name}"): WRITER,
    ("POST", "/v1/artifacts"): WRITER,
    ("GET", "/v1/artifacts/{digest}"): READER,
    ("GET", "/v1/rollouts"): READER,
    ("GET", "/v1/rollouts/{rollout}"): READER,
    ("POST", "/v1/rollouts/{rollout}/{verb}"): WRITER,
    ("POST", "/v1/tenants/{tenant}/keys"): OPERATOR,
    ("GET", "/v1/tenants/{tenant}/keys"): OPERATOR,
    ("DELETE", "/v1/tenants/{tenant}/keys/{key_id}"): OPERATOR,
    ("GET", "/v1/audit"): OPERATOR,
    ("GET", "/v1/audit/verify"): OPERATOR,
    ("GET", "/v1/fleet/series"): OPERATOR,
    ("GET", "/v1/alerts"): OPERATOR,
    ("GET", "/v1/tenants"): OPERATOR,
    ("GET", "/v1/traces"): OPERATOR,
    ("GET", "/v1/traces/{request_id}"): OPERATOR,
    ("GET", "/v1/drills"): OPERATOR,
    ("GET", "/v1/branch"): OPERATOR,
    ("PUT", "/v1/branch"): CONTROLLER,
}
PAGE = ("/console", "/console/console.css", "/console/app.js", "/openapi.json")  # not in the document
OF_ONE_TENANT = [door for door in DOORS if {"{tenant}", "{rollout}", "{digest}"} & set(door[1].split("/"))]
BODIES = {
    ("PUT", "/v1/models/{tenant}/{name}/versions/{version}"): {"digest": digest("c"), "base_model": "base"},
    ("POST", "/v1/models/{tenant}/{name}/channels/{channel}"): {"version": "v1"},
    ("PUT", "/v1/branch"): {"source": "main"},
}


def shown(caller: str) -> str:
    roles = {role: derived(TOKEN, purpose) for role, purpose in CREDENTIALS.items()}
    return ({"nobody": "", "operator": TOKEN} | roles).get(caller, caller)


async def answered(catalogue: Rig, door: tuple[str, str], caller: str, path: str) -> tuple[int, str]:
    answer = await catalogue.call(door[0], path, shown(caller), json=BODIES.get(door, {}))
    return answer.status_code, answer.text


def acmes(path: str, rollout: str) -> str:
    """Fill the route's path with names of existing objects of acme."""
    there = {"tenant": "acme", "name": "bot", "version": "v1", "channel": "stable", "digest": digest("c")}
    there |= {"rollout": rollout, "verb": "rollback", "key_id": "ci", "request_id": "req-1"}
    return path.format(**there)


async def test_the_table_has_every_route(catalogue: Rig) -> None:
    document = await catalogue.get("/openapi.json")
    known = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert known == set(DOORS)
    for path in PAGE:
        assert (await catalogue.call("GET", path, "")).status_code == 200
    heard = [await answered(catalogue, ("GET", ""), caller, "/console/state") for caller in CALLERS]
    assert [status for status, _ in heard] == [status or 200 for status in OPERATOR]


@pytest.mark.parametrize("caller", [caller for caller in CALLERS if caller != "operator"])
async def test_openapi_shows_internal_routes_to_the_operator_only(catalogue: Rig, caller: str) -> None:
    told = (await catalogue.call("GET", "/openapi.json", shown(caller))).json()
    assert set(told["paths"]) == {path for _, path in DOORS if not path.startswith("/internal/")}


async def test_openapi_describes_errors_and_routes_without_token(catalogue: Rig) -> None:
    document = await catalogue.get("/openapi.json", "")
    refused = await catalogue.call("GET", "/v1/models", "")
    schema = document["paths"]["/v1/models"]["get"]["responses"]["401"]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(refused.json())
    operations = [(path, one) for path, methods in document["paths"].items() for one in methods.values()]
    without = {path for path, operation in operations if operation["security"] == []}
    assert without == {path for (_, path), heard in DOORS.items() if heard == ANYBODY}
    refusals = [answer for _, one in operations for status, answer in one["responses"].items() if status >= "400"]
    assert all(answer["content"]["application/json"]["schema"] == schema for answer in refusals)
    brought = {path for path, operation in operations if "422" in operation["responses"]}
    assert brought == {"/v1/artifacts", "/v1/models/{tenant}/{name}/versions/{version}"}


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
async def test_each_caller_gets_the_status_in_the_table(catalogue: Rig, door: tuple[str, str]) -> None:
    path = acmes(door[1], await catalogue.rolling())
    await catalogue.call("POST", "/v1/tenants/acme/keys", json={"id": "ci"})
    before = await catalogue.audited()
    for caller, heard in zip(CALLERS, DOORS[door], strict=True):
        if heard:
            assert (await answered(catalogue, door, caller, path))[0] == heard, caller
    assert await catalogue.audited() == before
    for caller, heard in zip(CALLERS, DOORS[door], strict=True):
        if not heard:
            status, _ = await answered(catalogue, door, caller, path)
            assert status not in (401, 403) and (status < 500 or status == 503), caller


@pytest.mark.parametrize("door", OF_ONE_TENANT, ids=" ".join)
async def test_other_tenant_cannot_distinguish_foreign_from_missing_objects(
    catalogue: Rig, door: tuple[str, str]
) -> None:
    """The answers must be equal word for word, apart from the names in the request."""
    rollout = await catalogue.rolling()
    before = await catalogue.audited()
    nowhere = {"acme": "none", "bot": "nix", rollout: "ro-00000000", digest("c"): digest("0")}
    path = other = acmes(door[1], rollout)
    for there, missing in nowhere.items():
        other = other.replace(there, missing)
    assert path != other
    status, text = await answered(catalogue, door, "globex-writer", path)
    for there, missing in nowhere.items():
        text = text.replace(there, missing)
    assert (status, text) == await answered(catalogue, door, "globex-writer", other)
    assert status in (401, 403, 404)
    assert await catalogue.audited() == before
