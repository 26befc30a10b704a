"""A registry with a database, called in this process: two tenants with keys, two bases, three rollout policies.

acme and globex own what is made through the API; `acme/declared` is git's. `artifact` brings content in by its row, as
an ingest does at its end; what fetches and checks the bytes has its own tests.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from functions.api import keys
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId
from functions.api.snapshot import (
    KeyEntry,
    ModelEntry,
    PoolEntry,
    RolloutEntry,
    Snapshot,
    StageEntry,
    TenantEntry,
    VersionEntry,
)
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.rollout_stats import EvidenceBook
from functions.registry.app import make_app
from functions.registry.declared import DeclaredCatalogue
from functions.registry.fleet_watch import FleetWatch
from functions.registry.ingesting import Ingesting
from functions.registry.principal import Authenticator
from functions.registry.services import RegistryServices
from functions.registry.sql import artifacts
from functions.registry.sql.artifacts import StoredArtifact
from functions.registry.sql.audit import Actor
from functions.registry.sql.catalogue_writes import CatalogueLimits
from functions.registry.sql.database import Database
from functions.registry.store import SnapshotStore
from tests.fleet.builders import snapshot
from tests.registry.rig import NOW_UNIX_S, TOKEN, ScriptedBus

PEPPER = b"pepper"
ENTROPY = {"acme-writer": b"1" * 32, "acme-reader": b"2" * 32, "acme-plain": b"3" * 32, "globex-writer": b"4" * 32}
SCOPES = {"writer": ("models:write",), "reader": ("models:read",), "plain": ("inference",)}
STAGES = (StageEntry(10, 60.0), StageEntry(100))
LIMITS = CatalogueLimits(models_per_tenant=50, versions_per_model=20, channels_per_model=3)


def digest(letter: str) -> Digest:
    return Digest("sha256:" + letter * 64)


def key_text(key_id: str) -> str:
    return keys.mint("test", key_id, ENTROPY[key_id])


def key_entry(key_id: str, pepper: bytes = PEPPER) -> KeyEntry:
    parsed = keys.parse(key_text(key_id))
    assert parsed is not None
    tenant, _, kind = key_id.partition("-")
    hashed = keys.keyed_hash(pepper, parsed.secret)
    return KeyEntry(KeyId(key_id), TenantId(tenant), hashed, SCOPES[kind], "interactive")  # type: ignore[arg-type]


def published(epoch: int = 1, pepper: bytes = PEPPER, **changes: Any) -> Snapshot:
    version = VersionEntry(
        "v1", digest("a"), EngineName("acme/declared@sha256:a"), "s3://shoal-models/acme/declared/v1"
    )
    declared = ModelEntry(
        ModelId("acme/declared"), PoolName("base"), "lora", (version,), {"stable": "v1"}, "registry/acme.yaml"
    )
    base_version = VersionEntry("v1", digest("b"), EngineName("base"), "pvc://shoal-models/base")
    base = ModelEntry(
        ModelId("base"), PoolName("base"), "base", (base_version,), {"stable": "v1"}, "inference/base.yaml"
    )
    return snapshot(
        epoch,
        tenants=(
            TenantEntry(TenantId("acme"), "standard", ("acme/*", "base")),
            TenantEntry(TenantId("globex"), "standard", ("globex/*", "base")),
        ),
        keys=tuple(key_entry(key_id, pepper) for key_id in sorted(ENTROPY)),
        models=(declared, base),
        pools=(PoolEntry(PoolName("base"), 2048), PoolEntry(PoolName("large"), 2048)),
        rollouts=(
            RolloutEntry("at-once", (StageEntry(100),)),
            RolloutEntry("default", STAGES, 50),
            RolloutEntry("slow", (StageEntry(1, 600.0), StageEntry(50, 600.0), StageEntry(100)), 50),
        ),
        **changes,
    )


@dataclass
class Rig:
    database: Database
    store: SnapshotStore
    services: RegistryServices
    client: httpx.AsyncClient

    async def call(self, method: str, path: str, who: str = TOKEN, **options: Any) -> httpx.Response:
        """Send a request. `who` is the operator's token, or the id of a tenant's key."""
        bearer = key_text(who) if who in ENTROPY else who
        headers = {"authorization": f"Bearer {bearer}"} | options.pop("headers", {})
        return await self.client.request(method, path, headers=headers, **options)

    async def get(self, path: str, who: str = TOKEN, **params: Any) -> Any:
        answer = await self.call("GET", path, who, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def artifact(self, letter: str, tenant: str = "acme") -> str:
        """Store a row for content, as a finished ingest does; return its digest."""
        row = StoredArtifact(digest(letter), tenant, "", 1000, {"rank": 4})
        self.database.write(Actor("test"), lambda write: artifacts.put_artifact(write, row))
        return digest(letter)

    async def put(
        self, name: str, letter: str, model: str = "acme/bot", who: str = TOKEN, **changes: Any
    ) -> httpx.Response:
        """Store a row for content and PUT a version of it."""
        self.artifact(letter, model.split("/", maxsplit=1)[0])
        body = {"digest": digest(letter), "base_model": "base", "adapter_type": "lora"} | changes
        return await self.call("PUT", f"/v1/models/{model}/versions/{name}", who, json=body)

    async def point(
        self, version: str, channel: str = "stable", model: str = "acme/bot", who: str = TOKEN, **options: Any
    ) -> httpx.Response:
        path = f"/v1/models/{model}/channels/{channel}"
        return await self.call("POST", path, who, json={"version": version}, **options)

    async def rolling(self, model: str = "acme/bot", policy: str = "default") -> str:
        """Start a rollout of a model from v1 to v2; return its id."""
        assert (await self.put("v1", "c", model, promote_to="stable", rollout=policy)).status_code == 201
        assert (await self.put("v2", "d", model)).status_code == 201
        answer = await self.point("v2", model=model)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["rollout"]["id"])

    async def happened(
        self, rollout: str, kind: str, lock_version: int, fence: int = 0, **fields: Any
    ) -> httpx.Response:
        """Report an event of a rollout, as the controller does."""
        body = {"event": {"is": kind, **fields}, "lock_version": lock_version}
        path = f"/internal/v1/rollouts/{rollout}/events"
        return await self.call("POST", path, json=body, headers={"x-shoal-fence": str(fence)})

    async def audited(self) -> list[str]:
        """Return the audited actions, oldest first."""
        return [entry["action"] for entry in reversed((await self.get("/v1/audit"))["data"])]


@asynccontextmanager
async def catalogue(
    folder: Path,
    database: Database,
    limits: CatalogueLimits = LIMITS,
    ingesting: Ingesting | None = None,
    **authenticator: Any,
) -> AsyncIterator[Rig]:
    store = SnapshotStore(folder / "snapshot.json")
    await store.publish(published())
    services = RegistryServices(
        database=database,
        declared=DeclaredCatalogue(store),
        authenticator=Authenticator(store, RoleCredentials(TOKEN), PEPPER, lambda: NOW_UNIX_S, **authenticator),
        limits=limits,
        evidence=EvidenceBook(),
        ingesting=ingesting,
        pepper=PEPPER,
        key_environment="test",
        max_keys_per_tenant=3,
    )
    app = make_app(store, FleetWatch(ScriptedBus()), RoleCredentials(TOKEN), lambda: NOW_UNIX_S, services=services)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://registry", timeout=60) as client:
        yield Rig(database, store, services, client)
