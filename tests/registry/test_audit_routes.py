"""The audit over HTTP: pages back in time, one tenant's entries, and verification of the chain."""

from sqlalchemy import update

from functions.registry.sql.tables import audit
from tests.registry.backends import url
from tests.registry.catalogue_rig import Rig

__all__ = ["url"]


async def test_audit_pages_go_back_in_time(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", promote_to="stable")
    await catalogue.put("v1", "c", "globex/own")
    page = await catalogue.get("/v1/audit", limit=3)
    assert ([entry["seq"] for entry in page["data"]], page["next_after"]) == ([7, 6, 5], 5)
    rest = await catalogue.get("/v1/audit", after=page["next_after"])
    assert ([entry["action"] for entry in rest["data"]], rest["next_after"]) == (
        ["channel.moved", "version.put", "model.made", "artifact.kept"],
        None,
    )
    assert {entry["tenant"] for entry in (await catalogue.get("/v1/audit", tenant="globex"))["data"]} == {"globex"}


async def test_an_entry_names_the_request_that_caused_it(catalogue: Rig) -> None:
    catalogue.artifact("c")
    body = {"digest": "sha256:" + "c" * 64, "base_model": "base"}
    path = "/v1/models/acme/bot/versions/v1"
    await catalogue.call("PUT", path, "acme-writer", json=body, headers={"x-request-id": "req-of-mine"})
    last = (await catalogue.get("/v1/audit", limit=1))["data"][0]
    assert (last["action"], last["request_id"], last["actor"]) == ("version.put", "req-of-mine", "key:acme-writer")
    assert last["subject"] == "acme/bot@v1"


async def test_the_chain_is_verified_on_demand(catalogue: Rig) -> None:
    await catalogue.put("v1", "c")
    found = await catalogue.get("/v1/audit/verify")
    assert (found["sound"], found["entries"]) == (True, 3)
    assert found["head"] == (await catalogue.get("/v1/audit", limit=1))["data"][0]["hash"]
    forged = update(audit).where(audit.c.seq == 2).values(entry='{"seq":2,"actor":"nobody"}')
    catalogue.database.write_unaudited(lambda connection: connection.execute(forged))
    found = await catalogue.get("/v1/audit/verify")
    assert (found["sound"], found["broken_at"]) == (False, 2)
