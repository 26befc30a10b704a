"""Every route at once: who gets past its door, and that another tenant learns nothing behind it.

A route that is new has to be given a line in `DOORS`: the table is held against the OpenAPI document.
"""

import pytest
from jsonschema import Draft202012Validator

from tests.registry.catalogue_world import World, digest
from tests.registry.world import TOKEN

CALLERS = ("nobody", "acme-plain", "acme-reader", "acme-writer", "globex-writer", "operator")
# A door, and what each caller of `CALLERS` hears at it; 0: let in. What is another tenant's is 404 further in.
ANYBODY = (0, 0, 0, 0, 0, 0)
READER = (401, 403, 0, 0, 0, 0)
WRITER = (401, 403, 403, 0, 0, 0)
OPERATOR = (401, 403, 403, 403, 403, 0)
INSIDE = (401, 401, 401, 401, 401, 0)  # tenants' keys are not even looked at: these routes need no snapshot

DOORS: dict[tuple[str, str], tuple[int, ...]] = {
    ("GET", "/healthz"): ANYBODY,
    ("GET", "/readyz"): ANYBODY,
    ("GET", "/metrics"): ANYBODY,
    ("GET", "/v1/snapshot"): INSIDE,
    ("HEAD", "/v1/snapshot"): INSIDE,
    ("PUT", "/v1/snapshot"): INSIDE,
    ("GET", "/v1/fleet"): INSIDE,
    ("GET", "/v1/fleet/pools"): INSIDE,
    ("PUT", "/v1/fleet/pools"): INSIDE,
    ("GET", "/v1/fleet/zones"): INSIDE,
    ("PUT", "/v1/fleet/zones"): INSIDE,
    ("POST", "/internal/v1/swarm/{digest}"): INSIDE,
    ("GET", "/internal/v1/swarm"): INSIDE,
    ("GET", "/internal/v1/changes"): OPERATOR,
    ("PUT", "/internal/v1/rollouts/{rollout}"): OPERATOR,
    ("POST", "/internal/v1/rollouts/{rollout}/events"): OPERATOR,
    ("GET", "/internal/v1/rollouts/{rollout}/evidence"): OPERATOR,
    ("POST", "/internal/v1/gc"): OPERATOR,
    ("POST", "/internal/v1/usage"): OPERATOR,
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
    ("GET", "/v1/usage"): READER,
    ("GET", "/v1/usage/pools"): OPERATOR,
    ("GET", "/v1/audit"): OPERATOR,
    ("GET", "/v1/audit/verify"): OPERATOR,
}
PAGE = ("/console", "/console/console.css", "/console/console.js", "/openapi.json")  # not in the document
OF_ONE_TENANT = [door for door in DOORS if {"{tenant}", "{rollout}", "{digest}"} & set(door[1].split("/"))]
BODIES = {
    ("PUT", "/v1/models/{tenant}/{name}/versions/{version}"): {"digest": digest("c"), "base_model": "base"},
    ("POST", "/v1/models/{tenant}/{name}/channels/{channel}"): {"version": "v1"},
}


async def answered(catalogue: World, door: tuple[str, str], caller: str, path: str) -> tuple[int, str]:
    who = {"nobody": "", "operator": TOKEN}.get(caller, caller)
    answer = await catalogue.call(door[0], path, who, json=BODIES.get(door, {}))
    return answer.status_code, answer.text


def acmes(path: str, rollout: str) -> str:
    """The path to something that is acme's and that is there."""
    there = {"tenant": "acme", "name": "bot", "version": "v1", "channel": "stable", "digest": digest("c")}
    there |= {"rollout": rollout, "verb": "rollback", "key_id": "ci"}
    return path.format(**there)


async def test_the_table_has_every_route(catalogue: World) -> None:
    document = await catalogue.get("/openapi.json")
    known = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert known == set(DOORS)
    for path in PAGE:
        assert (await catalogue.call("GET", path, "")).status_code == 200
    heard = [await answered(catalogue, ("GET", ""), caller, "/console/state") for caller in CALLERS]
    assert [status for status, _ in heard] == [*OPERATOR[:-1], 200]


@pytest.mark.parametrize("caller", CALLERS[:-1])
async def test_the_document_tells_internal_routes_to_the_operator_alone(catalogue: World, caller: str) -> None:
    told = (await catalogue.call("GET", "/openapi.json", "" if caller == "nobody" else caller)).json()
    assert set(told["paths"]) == {path for _, path in DOORS if not path.startswith("/internal/")}


async def test_the_document_says_what_errors_look_like_and_who_needs_no_token(catalogue: World) -> None:
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
async def test_each_caller_hears_what_the_table_says(catalogue: World, door: tuple[str, str]) -> None:
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
async def test_another_tenant_cannot_tell_what_is_acmes_from_what_is_nowhere(
    catalogue: World, door: tuple[str, str]
) -> None:
    """Word for word, once the names that it sent itself are taken out."""
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
