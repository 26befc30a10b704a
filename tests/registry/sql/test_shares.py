"""No tenant uses up the snapshot's room for the others, or fills the tables with names it no longer uses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, text

from functions.api.ids import Digest, EngineName, ModelId, PoolName
from functions.api.snapshot import ModelEntry, VersionEntry
from functions.registry.sql import catalogue, catalogue_writes, changes
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from tests.registry.catalogue_rig import LIMITS, Rig
from tests.registry.catalogue_rig import catalogue as serving
from tests.registry.rig import error_of


@asynccontextmanager
async def limited(tmp_path: Path, database: Database, **limits: Any) -> AsyncIterator[Rig]:
    async with serving(tmp_path, database, replace(LIMITS, **limits)) as rig:
        yield rig


def in_the_snapshot(rig: Rig, model: str) -> int:
    """Return the size in bytes of the model's line in the snapshot."""
    stored = rig.database.read(lambda c: catalogue.model(c, model))
    assert stored is not None
    versions = tuple(
        VersionEntry(it.name, Digest(it.digest), EngineName(f"{model}@{it.digest[:23]}"), it.artifact_uri)
        for it in stored.versions
    )
    channels = {name: channel.version for name, channel in stored.channels.items()}
    entry = ModelEntry(ModelId(model), PoolName(stored.base), "lora", versions, channels, "", stored.rollout)
    return len(msgspec.json.encode(entry)) + 1


async def test_share_is_at_least_the_size_in_the_snapshot(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", promote_to="stable")
    estimate = catalogue.database.read(lambda c: catalogue_writes.snapshot_bytes(c, "acme"))
    assert (estimate, in_the_snapshot(catalogue, "acme/bot")) == (597, 312)
    for number in range(2, 12):
        await catalogue.put(f"v{number}", "d", model="acme/" + "m" * 60)
    estimate = catalogue.database.read(lambda c: catalogue_writes.snapshot_bytes(c, "acme"))
    taken = sum(in_the_snapshot(catalogue, model) for model in ("acme/bot", "acme/" + "m" * 60))
    assert taken <= estimate <= 1.6 * taken


async def test_tenant_is_limited_to_its_own_share(tmp_path: Path, database: Database) -> None:
    async with limited(tmp_path, database, snapshot_bytes_per_tenant=597) as rig:
        assert (await rig.put("v1", "c", promote_to="stable")).status_code == 201
        for refused in (await rig.put("v2", "d"), await rig.point("v1", "beta")):
            assert (refused.status_code, error_of(refused)["code"]) == (409, "snapshot_share_full")
        assert [version["name"] for version in (await rig.get("/v1/models/acme/bot"))["versions"]] == ["v1"]
        assert (await rig.put("v1", "c", model="globex/bot")).status_code == 201
        assert (await rig.call("DELETE", "/v1/models/acme/bot")).status_code == 204
        assert (await rig.put("v1", "c", model="acme/new")).status_code == 201


async def test_deleted_model_names_still_count(tmp_path: Path, database: Database) -> None:
    async with limited(tmp_path, database, model_names_per_tenant=2) as rig:
        for name in ("acme/one", "acme/two"):
            assert (await rig.put("v1", "c", model=name)).status_code == 201
            assert (await rig.call("DELETE", f"/v1/models/{name}")).status_code == 204
        refused = await rig.put("v1", "c", model="acme/three")
        assert (refused.status_code, error_of(refused)["code"]) == (409, "too_many_model_names")
        assert (await rig.put("v1", "c", model="acme/one")).status_code == 201


async def test_deleted_version_names_still_count(tmp_path: Path, database: Database) -> None:
    async with limited(tmp_path, database, version_names_per_model=2) as rig:
        for name in ("v1", "v2"):
            assert (await rig.put(name, "c")).status_code == 201
            assert (await rig.call("DELETE", f"/v1/models/acme/bot/versions/{name}")).status_code == 204
        refused = await rig.put("v3", "c")
        assert (refused.status_code, error_of(refused)["code"]) == (409, "too_many_version_names")
        assert (await rig.put("v1", "c")).status_code == 201


def test_writes_do_not_scan_deleted_versions(tmp_path: Path) -> None:
    """A walk over 300,000 deleted versions took half a second under the lock of all writes."""
    opened = Database(database_url(None, tmp_path))
    opened.prepare()

    def plan(connection: Connection) -> str:
        query = catalogue_writes.versions_of("acme").compile(connection, compile_kwargs={"literal_binds": True})
        return str(connection.execute(text(f"EXPLAIN QUERY PLAN {query}")).all())

    assert "USING INDEX versions_alive (model=?)" in opened.read(plan)
    opened.close()


async def test_page_of_changes_scans_no_further_than_its_end(catalogue: Rig) -> None:
    for number in range(8):
        await catalogue.put("v1", "c", model=f"acme/m{number}")

    def page_after(after: int) -> changes.Changes:
        return catalogue.database.read(lambda c: changes.changes_after(c, after, page_rows=4))

    after, seen = 0, []
    while (page := page_after(after)).models:
        seen += [model.id for model in page.models]
        after = page.change
        assert page.more == (len(seen) < 8)
    assert seen == [f"acme/m{number}" for number in range(8)]
    horizon = catalogue.database.read(lambda c: changes._horizon(c, 0, after, 4))
    assert 0 < horizon < after
