"""Tokenizers of pools at a gateway: from a folder that an operator filled, or fetched from the store and stored on
disk.

A folder has one directory per pool. Without a folder, the snapshot has the digest of each pool's base model, and the
store has its tokenizer under that digest (`functions.artifacts.tokenizers`). It is fetched once, verified, reused
after restarts, and fetched again when the digest in the snapshot changes. A pool needs a tokenizer only if its
routing policy uses reports of replicas' caches.

No request waits for this. Until a tokenizer is available the gateway uses its own record, and a metric and one log
line give the reason. Retries:

    delay after the n-th failure in a row = min(300 s, 2 s * 2**(n - 1)) * (0.75 to 1.25, at random)
    worked example (test_unavailable_store_is_retried_with_backoff): 2, 4, 8 s … so that gateways that lost a store
    together do not retry together

`exact_prefixes` requests a pool's directory; `functions.gateway.feeds` calls `refresh` each second.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, Protocol, get_args

from functions.api.ids import DEFAULT_CHANNEL, Digest, PoolName
from functions.artifacts.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.decisions.catalogue import Catalogue
from functions.decisions.health.backoff import BackoffPolicy, delay_s

_log = logging.getLogger(__name__)
_BACKOFF = BackoffPolicy(base_s=2.0, cap_s=300.0)
_JITTER_RATIO = 0.25
_STAND_IN = b"shoal_tokenizer"
_CONFIG_MAX_BYTES = 64 * 1024

FetchOutcome = Literal["fetched", "missing", "corrupt", "no_room", "unavailable"]


class FetchTokenizer(Protocol):
    def __call__(self, digest: Digest, in_use: Collection[Digest]) -> Path:
        """Return the verified directory of this base's tokenizer; fetch it if needed. Raise ArtifactError. Blocks.

        `in_use` are the digests that the pools need.
        """


class TokenizerSource:
    """Tokenizer directory of each pool. Owned by one event loop."""

    def __init__(
        self,
        folder: Path | None,
        fetch: FetchTokenizer | None,
        clock: Callable[[], float],
        uniform: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._fetch = fetch
        self._clock = clock
        self._uniform = uniform
        self._fetched: dict[PoolName, tuple[Digest, Path]] = {}
        self._failed: dict[Digest, _Failed] = {}
        self._wanted: dict[PoolName, Digest | None] = {}
        self.outcomes: dict[FetchOutcome, int] = dict.fromkeys(get_args(FetchOutcome), 0)

    def directory_of(self, pool: PoolName) -> Path | None:
        """Return the directory of the pool's tokenizer, or None if it is not fetched yet.

        If tokenizers are in a configured folder, the directory may not exist.
        """
        if self._fetch is None:
            return self._folder / pool if self._folder is not None else None
        fetched = self._fetched.get(pool)
        return fetched[1] if fetched is not None else None

    def ready(self) -> dict[PoolName, bool]:
        """Return for each pool that needs a tokenizer from the store whether it is available."""
        return {pool: pool in self._fetched for pool in self._wanted}

    def why_missing(self, pool: PoolName) -> str:
        """Return why the pool's tokenizer cannot become available. Empty if it is available or being fetched.

        Reads files. Any thread may call it.
        """
        if self._fetch is None:
            return _no_tokenizer(self._folder / pool) if self._folder is not None else "no folder is configured"
        if pool in self._fetched:
            return ""
        digest = self._wanted.get(pool)
        if digest is None and pool in self._wanted:
            return f"no version of the base model {pool} is in force"
        failed = self._failed.get(digest) if digest is not None else None
        return failed.why if failed is not None else ""

    async def refresh(self, catalogue: Catalogue) -> bool:
        """Fetch missing tokenizers that are due. Return True if an outdated tokenizer of a pool was dropped."""
        if self._fetch is None:
            return False
        self._wanted = {pool: base_digest(catalogue, pool) for pool in catalogue.pools if is_needed(catalogue, pool)}
        in_use = {digest for digest in self._wanted.values() if digest is not None}
        self._failed = {digest: failed for digest, failed in self._failed.items() if digest in in_use}
        outdated = [pool for pool, (digest, _) in self._fetched.items() if self._wanted.get(pool) != digest]
        for pool in outdated:
            del self._fetched[pool]
        for pool, digest in self._wanted.items():
            if digest is not None and pool not in self._fetched:
                await self._obtain(self._fetch, pool, digest, in_use)
        return bool(outdated)

    async def _obtain(self, fetch: FetchTokenizer, pool: PoolName, digest: Digest, in_use: set[Digest]) -> None:
        failed = self._failed.get(digest)
        if failed is not None and self._clock() < failed.again_s:
            return
        try:
            directory = await asyncio.to_thread(fetch, digest, in_use)
        except ArtifactError as error:
            self.outcomes[outcome_of(error)] += 1
            self._failed[digest] = self._next_try(failed, str(error))
            if failed is None or failed.why != str(error):
                _log.warning(
                    "prefixes of pool %s are estimated by text: the tokenizer of %s is missing: %s", pool, digest, error
                )
            return
        self.outcomes["fetched"] += 1
        self._failed.pop(digest, None)
        self._fetched[pool] = digest, directory
        _log.info("the tokenizer of pool %s was fetched: %s", pool, digest)

    def _next_try(self, failed: "_Failed | None", why: str) -> "_Failed":
        times = 1 + (failed.times if failed is not None else 0)
        jitter = 1.0 + _JITTER_RATIO * (2.0 * self._uniform() - 1.0)
        return _Failed(times, self._clock() + delay_s(times, _BACKOFF) * jitter, why)


class _Failed:
    __slots__ = ("again_s", "times", "why")

    def __init__(self, times: int, again_s: float, why: str) -> None:
        self.times, self.again_s, self.why = times, again_s, why


def base_digest(catalogue: Catalogue, pool: PoolName) -> Digest | None:
    """Return the digest of the version that the default channel of the pool's base model has, or None."""
    model = catalogue.base_of(pool)
    if model is None:
        return None
    name = model.channels.get(DEFAULT_CHANNEL)
    return next((version.digest for version in model.versions if version.name == name), None)


def outcome_of(error: ArtifactError) -> FetchOutcome:
    if isinstance(error, ArtifactMissing):
        return "missing"
    if isinstance(error, ArtifactCorrupt | ArtifactRefused):
        return "corrupt"
    return "no_room" if isinstance(error, CacheFailed) else "unavailable"


def _no_tokenizer(folder: Path) -> str:
    """Return why the folder has no tokenizer, or empty text if it has one or a simulated engine's config."""
    if (folder / "tokenizer.json").is_file():
        return ""
    config = folder / "config.json"
    is_stand_in = config.is_file() and _STAND_IN in config.read_bytes()[:_CONFIG_MAX_BYTES]
    return "" if is_stand_in else f"there is no tokenizer.json in {folder}"


def is_needed(catalogue: Catalogue, pool: PoolName) -> bool:
    return catalogue.pools[pool].task == "generate" and catalogue.routing_for(pool).prefix_source != "sent"
