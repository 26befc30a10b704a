"""Ingest adapters: a few at a time, in separate threads, and none is named before its objects are held.

    reserve a place → receive, check, publish (functions/artifacts/ingest) → hold the digest → write its row → release

An ingest takes seconds to minutes, so each tenant has few places and the whole registry not many more. Without a free
place an upload is rejected and should be retried; a check of stored content waits up to PATIENCE_S. The row is
written while the artifact is held, so that the collector cannot run in between. Facts of a base model are read in
other threads.
"""

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from functions.api.ids import Digest, TenantId
from functions.artifacts.base_facts import BaseFacts, Stamp, facts_of, fingerprint_of, stamp_of
from functions.artifacts.errors import ArtifactError, StoreUnavailable
from functions.artifacts.ingest import Expectation, Ingest, Ingested
from functions.artifacts.locations import manifest_key
from functions.artifacts.manifest import hex_of
from functions.registry.errors import ApiError
from functions.registry.sql import artifacts, ledger
from functions.registry.sql.artifacts import ByteLimit, StoredArtifact
from functions.registry.sql.audit import Actor
from functions.registry.sql.database import Database
from functions.registry.sql.transaction import Write

# Facts of the base models, which adapters are checked against. They are read from the base's folder, and again when
# its files change.
#
#     base's name, folder → (folder, stamp of its files) unchanged?  yes: use the known facts    no: read them
#
# The fingerprint identifies facts. An adapter that was checked against one fingerprint counts as unchecked for
# another, even if the pool only moved to another folder. Missing facts of a base are logged once, until they exist
# and go missing again. Adapters over such a base are stored unchecked, or rejected
# (SHOAL_REGISTRY_BASE_FACTS_REQUIRED).


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownBase:
    facts: BaseFacts
    fingerprint: str


@dataclass(slots=True)
class Bases:
    """Known facts of base models. Methods block on the disk and may run in any thread; a lost entry is read again."""

    models_dir: Path | None  # base models by folder; None: no facts, so only the engine checks shapes
    _read: dict[str, tuple[PurePosixPath, Stamp, KnownBase]] = field(default_factory=dict)  # by base: the last facts
    _missing: set[str] = field(default_factory=set)  # bases whose missing facts were logged

    def find_facts(self, base: str, folder: PurePosixPath) -> KnownBase | None:
        """Return the facts of the base as its folder has them now, or None if they are missing or unreadable, which is
        logged once."""
        found = self._find(base, folder)
        if isinstance(found, KnownBase):
            self._missing.discard(base)
            return found
        if base not in self._missing:
            self._missing.add(base)
            _log.warning("adapters over %s are not checked: %s; create the facts with `shoal base facts`", base, found)
        return None

    def _find(self, base: str, folder: PurePosixPath) -> KnownBase | str:
        """Return the facts, or the reason why there are none."""
        if self.models_dir is None:
            return "SHOAL_REGISTRY_MODELS_DIR is not set"
        directory = self.models_dir / folder
        if ".." in folder.parts or not directory.is_dir():
            return f"the folder {directory} does not exist"
        try:
            stamp = stamp_of(directory)
            before = self._read.get(base)
            if before is not None and before[:2] == (folder, stamp):
                return before[2]
            facts = facts_of(directory, names=(base, folder.name))
        except (ArtifactError, OSError) as error:
            return str(error)
        found = KnownBase(facts, fingerprint_of(facts))
        self._read[base] = (folder, stamp, found)
        return found


Answer = TypeVar("Answer")

PATIENCE_S = 30.0  # a check takes seconds: a script that registers a dozen versions at a time is served in turn


@dataclass(slots=True)
class Ingesting:
    """Ingests of one registry, with their limits. Owned by one event loop."""

    ingest: Ingest
    database: Database
    models_dir: Path | None  # base models by pool name; None: only the engine checks shapes
    max_rank: int
    at_once: int
    at_once_per_tenant: int
    tenant_limit: ByteLimit | None = None  # limit of each tenant's artifacts; None: no limit. The operator has none
    facts_required: bool = False  # reject adapters over a base whose facts are missing
    _taken: Counter[str] = field(default_factory=Counter)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)  # set when a place is released, then replaced
    _bases: Bases = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._bases = Bases(self.models_dir)
        self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="ingest")

    @contextlib.contextmanager
    def reserve_place(self, tenant: TenantId | None) -> Iterator[None]:
        """Hold one of the few places for ingests in the block. Raises ApiError 429 if the tenant uses all of its
        places, 503 if the registry has none left. The operator has no limit per tenant, since its artifacts are for all
        tenants."""
        name = tenant or artifacts.OPERATOR
        refusal = self._refusal(tenant)
        if refusal is not None:
            raise refusal
        self._taken[name] += 1
        try:
            yield
        finally:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]
            self._freed.set()
            self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def wait_for_place(self, tenant: TenantId | None, patience_s: float = PATIENCE_S) -> AsyncIterator[None]:
        """Reserve a place as `reserve_place` does, but wait up to `patience_s` for one. For work that takes seconds."""
        gives_up_s = asyncio.get_running_loop().time() + patience_s
        while (refusal := self._refusal(tenant)) is not None:
            try:
                async with asyncio.timeout_at(gives_up_s):
                    await self._freed.wait()
            except TimeoutError:
                raise refusal from None
        with self.reserve_place(tenant):
            yield

    def _refusal(self, tenant: TenantId | None) -> ApiError | None:
        """Return the 429 or 503 to raise because no place is free for this tenant, or None if one is."""
        if tenant is not None and self._taken[tenant] >= self.at_once_per_tenant:
            message = f"you have {self.at_once_per_tenant} uploads under way, which is the limit; try again later"
            return ApiError(429, "too_many_uploads", message, headers={"retry-after": "10"})
        if self._taken.total() >= self.at_once:
            message = f"all tenants together have {self.at_once} uploads under way, which is the limit; try again later"
            return ApiError(503, "too_many_uploads", message, headers={"retry-after": "10"})
        return None

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Run `work` in one of the ingest threads and return its result. It runs to its end even if the caller is
        cancelled."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, work))

    async def expectation(self, tenant: TenantId | None, base: str, folder: PurePosixPath) -> Expectation:
        """Return the requirements for an adapter over `base`, whose files are in `folder`. An empty base means none.
        It does not wait for ingests, since content that was checked before needs none. Raises ApiError if the base's
        facts are required and missing."""
        known = await asyncio.to_thread(self._bases.find_facts, base, folder) if base else None
        if base and known is None and self.facts_required:
            message = (
                f"adapters over {base} cannot be checked until the operator creates its facts (`shoal base facts`)"
            )
            raise ApiError(503, "base_facts_missing", message)
        return Expectation(
            tenant=tenant,
            base=known.facts if known is not None else None,
            base_fingerprint=known.fingerprint if known is not None else "",
            max_rank=self.max_rank,
            admits=functools.partial(self._admit, tenant) if tenant is not None else None,
        )

    def bases_without_facts(self, folders: Mapping[str, PurePosixPath]) -> list[str]:
        """Return those of the bases (keys of `folders`) whose facts are missing. Blocks on the disk."""
        return [base for base, folder in folders.items() if self._bases.find_facts(base, folder) is None]

    async def from_uri(self, uri: str, expect: Expectation, actor: Actor) -> tuple[Ingested, bool]:
        """Fetch, check, publish and record the adapter at the URI. Return it, and True if it is new to the tenant.
        Raises ArtifactError, or CatalogueRefused over the tenant's limit."""

        def fetch() -> tuple[Ingested, bool]:
            ingested = self.ingest.from_uri(uri, expect)
            return ingested, self.record_artifact(ingested, uri, expect, actor)

        return await self.run(fetch)

    async def check(self, digest: Digest, expect: Expectation) -> None:
        """Check that stored content fits the base of `expect` as well; nothing is changed. Raises ArtifactRefused with
        the reason if it does not."""
        await self.run(lambda: self.ingest.check(digest, expect))

    def record_artifact(self, ingested: Ingested, uri: str, expect: Expectation, actor: Actor) -> bool:
        """Write the artifact's row while its objects are protected from garbage collection. Return True if it is new to
        the tenant. Blocks. Raises CatalogueRefused over the tenant's limit, StoreUnavailable if parts are being
        deleted."""
        row = StoredArtifact(
            digest=ingested.digest,
            tenant=expect.tenant or artifacts.OPERATOR,
            artifact_uri=uri,
            total_bytes=ingested.total_bytes,
            facts=msgspec.to_builtins(ingested.facts),
            checked=(expect.base_fingerprint,) if expect.base_fingerprint else (),
        )
        limit = self.tenant_limit if expect.tenant is not None else None
        with self.ingest.holding(ingested.digest) as held:

            def name(write: Write) -> bool:
                if ledger.unmark_within(write.connection, held.keys):
                    raise StoreUnavailable("parts of this artifact are being deleted; try again in a minute")
                if held.session is not None and not ledger.is_open(write.connection, held.session):
                    raise StoreUnavailable("the ingest exceeded its time limit; try again")
                return artifacts.put_artifact(write, row, limit)

            return self.database.write(actor, name)

    def has_manifest(self, digest: Digest) -> bool:
        """Return True if the store has the manifest, which is written after all its objects. Blocks."""
        return self.ingest.store.size_of(manifest_key(hex_of(digest))) is not None

    def check_held(self, digest: Digest) -> None:
        """Raise ArtifactMissing if the store does not have the whole artifact. Blocks."""
        with self.ingest.holding(digest):
            return

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _admit(self, tenant: TenantId, digest: Digest, size_bytes: int) -> None:
        """Raise CatalogueRefused if this artifact would exceed the tenant's limit, before anything is stored.
        `record_artifact` checks again in its transaction."""
        limit, now_unix_s = self.tenant_limit, self.database.now_unix_s()
        if limit is not None:
            refuse = functools.partial(artifacts.refuse_without_room, now_unix_s=now_unix_s)
            self.database.read(lambda connection: refuse(connection, digest, tenant, size_bytes, limit))
