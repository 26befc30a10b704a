"""No version is registered over a base that it does not fit, on any way in, and no tenant exceeds its share."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import httpx
import pytest

from functions.api.ids import TenantId
from functions.artifacts.base_facts import FACTS_NAME
from functions.artifacts.ingest import Ingest, IngestPolicy
from functions.artifacts.s3 import S3Store
from functions.registry.errors import ApiError
from functions.registry.ingesting import Ingesting
from functions.registry.sql.artifacts import ByteLimit
from functions.registry.sql.database import Database
from functions.registry.sql.ledger import SqlLedger
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.memory_store import MemoryStore
from tests.registry import catalogue_rig
from tests.registry.base_folders import put_facts
from tests.registry.catalogue_rig import Rig
from tests.registry.rig import error_of

FITS, DOES_NOT = 8, 16  # features of `base`, which fits the adapter, and of `large`
MAX_BYTES = 3000
ACME = TenantId("acme")


class Counted(MemoryStore):
    """An object store that counts reads."""

    reads = 0

    def read_small(self, key: str, max_bytes: int) -> bytes:
        self.reads += 1
        return super().read_small(key, max_bytes)


class Checking(Rig):
    objects: Counted
    models: Path

    async def upload(self, directory: Path, who: str = "acme-writer", **fields: str) -> httpx.Response:
        files = [("file", (path.name, path.read_bytes())) for path in sorted(directory.iterdir())]
        return await self.call("POST", "/v1/artifacts", who, files=files, data=fields)

    async def register(self, digest: str, base: str, model: str) -> httpx.Response:
        body = {"digest": digest, "base_model": base}
        return await self.call("PUT", f"/v1/models/acme/{model}/versions/v1", "acme-writer", json=body)


@pytest.fixture
async def checking(tmp_path: Path, database: Database) -> AsyncIterator[Checking]:
    models = tmp_path / "models"
    put_facts(models, "base", FITS)
    put_facts(models, "large", DOES_NOT)
    objects = Counted()
    policy = IngestPolicy(reserve_free_bytes=0)
    ingest = Ingest(cast(S3Store, objects), tmp_path / "staging", policy, ledger=SqlLedger(database))
    ingesting = Ingesting(ingest, database, models, 64, 3, 2, tenant_limit=ByteLimit(MAX_BYTES, grace_s=3600.0))
    async with catalogue_rig.catalogue(tmp_path, database, ingesting=ingesting) as rig:
        made = Checking(rig.database, rig.store, rig.services, rig.client)
        made.objects, made.models = objects, models
        yield made
    ingesting.close()


def an_adapter(folder: Path, seed: int = 0) -> Path:
    return make_adapter(folder, seed=seed, base_model_name_or_path="base", target_modules=["q_proj"])


@pytest.mark.parametrize("fields", [{}, {"base_model": "base"}])
async def test_content_is_checked_against_the_base_of_the_version(
    checking: Checking, tmp_path: Path, fields: dict[str, str]
) -> None:
    digest = (await checking.upload(an_adapter(tmp_path / "adapter"), **fields)).json()["digest"]
    refused = await checking.register(digest, "large", "wrong")
    assert (refused.status_code, error_of(refused)["code"]) == (422, "artifact_refused")
    assert "large" in error_of(refused)["message"] or "16" in error_of(refused)["message"]
    assert (await checking.call("GET", "/v1/models/acme/wrong")).status_code == 404
    assert (await checking.register(digest, "base", "right")).status_code == 201


async def test_checked_content_is_not_fetched_again_until_its_base_changes(checking: Checking, tmp_path: Path) -> None:
    digest = (await checking.upload(an_adapter(tmp_path / "adapter"))).json()["digest"]
    assert (await checking.register(digest, "base", "one")).status_code == 201
    reads = checking.objects.reads
    assert (await checking.register(digest, "base", "two")).status_code == 201
    assert checking.objects.reads == reads
    put_facts(checking.models, "base", 24)
    assert (await checking.register(digest, "base", "three")).status_code == 422
    assert (await checking.register(digest, "base", "one")).status_code == 200  # an existing version stays unchanged


async def test_base_without_required_facts_accepts_no_adapter(checking: Checking, tmp_path: Path) -> None:
    """Both an ingest that names the base and a version that names it are refused until the facts exist."""
    ingesting = checking.services.ingesting
    assert ingesting is not None
    adapter = an_adapter(tmp_path / "adapter")
    digest = (await checking.upload(adapter)).json()["digest"]
    facts = checking.models / "base" / FACTS_NAME
    facts.unlink()
    assert (await checking.register(digest, "base", "unchecked")).status_code == 201
    ingesting.facts_required = True
    for refused in (await checking.register(digest, "base", "bot"), await checking.upload(adapter, base_model="base")):
        assert (refused.status_code, error_of(refused)["code"]) == (503, "base_facts_missing")
        assert "adapters over base cannot be checked" in error_of(refused)["message"]
    assert (await checking.register(digest, "large", "bot")).status_code == 422, "another base's facts are there"
    put_facts(checking.models, "base", FITS)
    assert (await checking.register(digest, "base", "bot")).status_code == 201


async def test_metrics_name_the_bases_without_facts(checking: Checking) -> None:
    (checking.models / "large" / FACTS_NAME).unlink()
    page = (await checking.call("GET", "/metrics")).text
    assert [line for line in page.splitlines() if line.startswith("shoal_base_facts_missing{")] == [
        'shoal_base_facts_missing{base="large"} 1.0'
    ]
    put_facts(checking.models, "large", DOES_NOT)
    assert "shoal_base_facts_missing{" not in (await checking.call("GET", "/metrics")).text


async def test_concurrent_registrations_read_each_content_once(checking: Checking, tmp_path: Path) -> None:
    """More versions than the tenant has places: they wait, so that a script that registers all is not refused."""
    adapters = [an_adapter(tmp_path / str(seed), seed=seed) for seed in range(3)]
    digests = [(await checking.upload(adapter)).json()["digest"] for adapter in adapters]
    reads = checking.objects.reads
    assert (await checking.register(digests[0], "base", "alone")).status_code == 201
    once = checking.objects.reads - reads
    puts = (checking.register(digest, "base", f"bot-{n}-{k}") for n, digest in enumerate(digests) for k in range(4))
    assert [answer.status_code for answer in await asyncio.gather(*puts)] == [201] * 12
    assert checking.objects.reads - reads == 3 * once


async def test_registration_without_a_free_place_is_refused_after_a_while(checking: Checking) -> None:
    ingesting = checking.services.ingesting
    assert ingesting is not None
    with ExitStack() as taken:
        for _ in range(2):
            taken.enter_context(ingesting.reserve_place(ACME))
        with pytest.raises(ApiError, match="you have 2 uploads under way"):
            await taken_soon(ingesting)
    await taken_soon(ingesting)


async def taken_soon(ingesting: Ingesting) -> None:
    async with ingesting.wait_for_place(ACME, patience_s=0.01):
        pass


async def test_checked_content_does_not_wait_for_slow_ingests(checking: Checking, tmp_path: Path) -> None:
    digest = (await checking.upload(an_adapter(tmp_path / "adapter"), base_model="base")).json()["digest"]
    ingesting, ends = checking.services.ingesting, threading.Event()
    assert ingesting is not None
    with ExitStack() as taken:
        for tenant in ("globex", "initech", "hooli"):
            taken.enter_context(ingesting.reserve_place(TenantId(tenant)))
        slow = [asyncio.ensure_future(ingesting.run(ends.wait)) for _ in range(3)]
        try:
            async with asyncio.timeout(60):
                assert (await checking.register(digest, "base", "bot")).status_code == 201
        finally:
            ends.set()
            await asyncio.gather(*slow)


async def test_base_named_at_the_upload_needs_no_second_check(checking: Checking, tmp_path: Path) -> None:
    adapter = an_adapter(tmp_path / "adapter")
    digest = (await checking.upload(adapter)).json()["digest"]
    assert (await checking.upload(adapter, base_model="base")).status_code == 200
    reads = checking.objects.reads
    assert (await checking.register(digest, "base", "bot")).status_code == 201
    assert checking.objects.reads == reads


async def test_artifact_bytes_per_tenant_are_bounded(checking: Checking, tmp_path: Path) -> None:
    first = an_adapter(tmp_path / "first", seed=1)
    each_bytes = (await checking.upload(first)).json()["total_bytes"]
    fitting = MAX_BYTES // each_bytes
    for seed in range(2, fitting + 1):
        assert (await checking.upload(an_adapter(tmp_path / str(seed), seed=seed))).status_code == 201
    stored = set(checking.objects.objects)
    more = an_adapter(tmp_path / "more", seed=fitting + 1)
    refused = await checking.upload(more)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "too_many_artifact_bytes")
    assert set(checking.objects.objects) == stored  # refused before it was stored
    assert (await checking.upload(first)).status_code == 200  # already stored, so it needs no more room
    assert (await checking.upload(more, "globex-writer")).status_code == 201
