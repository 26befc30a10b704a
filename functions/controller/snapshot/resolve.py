"""Resolver of artifact URIs to digests: the present content of the stores under each address.

`s3://…` is a pointer object in the artifact store; `pvc://<volume>/<path>` is the manifest in a model's folder below
`models_root`. A failed read never removes a digest: if a store does not answer, or its answer is invalid, the last
known digest stays and a problem is reported. Only an address that never had a digest has none.

Neighbours: `functions.artifacts` reads pointers and manifests, `compile` uses the digests, `publish` calls this.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused, StoreUnavailable
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME
from functions.artifacts.publish import read_pointer
from functions.artifacts.s3 import S3Store

FRESH_S = 30.0  # validity of an answer: a moved pointer is followed within this time
_CONCURRENT_READS = 8
_PVC = "pvc://"


class ReadDigest(Protocol):
    def __call__(self, artifact_uri: str) -> Digest:
        """Return the artifact's present digest or raise ArtifactError. Blocks."""


@dataclass(frozen=True, slots=True)
class Resolved:
    digests: Mapping[str, Digest]
    problems: tuple[str, ...]  # addresses without a digest now, even if an older one is used


@dataclass(slots=True)
class _Round:
    """Intermediate results of one call of `resolve`."""

    problems: list[str] = field(default_factory=list)
    store_is_away: bool = False


class Resolver:
    """Cache of digests for the addresses of the last request. Owned by one event loop."""

    def __init__(
        self, read: ReadDigest, *, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._clock = clock
        self._known: dict[str, Digest] = {}
        self._read_at_s: dict[str, float] = {}

    def add_known(self, digests: Mapping[str, Digest]) -> None:
        """Add digests known before this process started; digests read since then take precedence."""
        self._known = {**digests, **self._known}

    async def resolve(self, artifact_uris: Iterable[str]) -> Resolved:
        """Return the known digests of these addresses, after reading those again whose last answer is old; other
        addresses are forgotten. Store errors become problems."""
        wanted = sorted(set(artifact_uris))
        self._drop_others(wanted)
        round_ = _Round()
        limit = asyncio.Semaphore(_CONCURRENT_READS)
        async with asyncio.TaskGroup() as readers:
            for uri in wanted:
                if not self._is_fresh(uri):
                    readers.create_task(self._refresh(uri, round_, limit))
        known = {uri: self._known[uri] for uri in wanted if uri in self._known}
        return Resolved(known, tuple(sorted(round_.problems)))

    async def _refresh(self, uri: str, round_: _Round, limit: asyncio.Semaphore) -> None:
        async with limit:
            if round_.store_is_away and not uri.startswith(_PVC):
                self._record_problem(uri, "not read: the store does not answer", round_)
                return
            try:
                self._known[uri] = await asyncio.to_thread(self._read, uri)
                self._read_at_s[uri] = self._clock()
            except StoreUnavailable as error:
                round_.store_is_away = True  # each further read would only wait for the same timeouts
                self._record_problem(uri, str(error), round_)
            except ArtifactError as error:
                self._record_problem(uri, str(error), round_)

    def _record_problem(self, uri: str, reason: str, round_: _Round) -> None:
        standing_in = f"; the last known digest {self._known[uri]} stays" if uri in self._known else ""
        round_.problems.append(f"{uri}: {reason}{standing_in}")

    def _is_fresh(self, uri: str) -> bool:
        read_at_s = self._read_at_s.get(uri)
        return read_at_s is not None and self._clock() - read_at_s < self._fresh_s

    def _drop_others(self, wanted: list[str]) -> None:
        self._known = {uri: self._known[uri] for uri in wanted if uri in self._known}
        self._read_at_s = {uri: self._read_at_s[uri] for uri in wanted if uri in self._read_at_s}


@dataclass(frozen=True, slots=True)
class DigestReader:
    """Reader of digests from both stores. `store` is None if the installation has no S3."""

    store: S3Store | None
    models_root: Path  # `pvc://shoal-models/<name>` is `<models_root>/<name>`

    def __call__(self, artifact_uri: str) -> Digest:
        if artifact_uri.startswith(_PVC):
            return self._from_folder(artifact_uri)
        if self.store is None:
            raise ArtifactRefused("no artifact store is configured")
        return read_pointer(self.store, artifact_uri)

    def _from_folder(self, artifact_uri: str) -> Digest:
        _, _, path = artifact_uri.removeprefix(_PVC).partition("/")
        parts = path.split("/")
        if not all(parts) or ".." in parts or "." in parts:
            raise ArtifactRefused(f"{artifact_uri} names no folder of the model volume")
        file = self.models_root.joinpath(*parts) / MANIFEST_NAME
        try:
            with file.open("rb") as opened:
                document = opened.read(MANIFEST_MAX_BYTES + 1)
        except OSError as error:
            raise ArtifactMissing(f"the model's folder has no readable {MANIFEST_NAME}: {error.strerror}") from error
        manifests.decode(document)
        return manifests.digest_of(document)
