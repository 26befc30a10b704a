"""A store behind a regional cache. Objects that are named by their sha256 are requested from the cache first.

    from the cache    200, and the bytes match the name
    from the store    everything else; a cache that fails or is slow is skipped for `AWAY_S`

So an absent, slow, full or faulty cache costs time, but never an artifact. An object is read completely before it is
returned, as `functions.artifacts.fetch` holds a chunk in memory in any case. Threads may share one instance.
"""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal

import httpx

from functions.artifacts.fetch import ObjectSource
from functions.artifacts.locations import CHUNKS_PREFIX, MANIFESTS_PREFIX

AWAY_S = 10.0
ANSWER_S = 30.0  # limit for a whole object; 64 MiB at 2 MB/s
_TIMEOUT = httpx.Timeout(10.0, connect=1.0)
_KINDS = {CHUNKS_PREFIX: "chunks", MANIFESTS_PREFIX: "manifests"}

Whence = Literal["cache", "store"]
_log = logging.getLogger(__name__)


class NearStore:
    """`bearer` is called for each read, since credentials change."""

    def __init__(
        self,
        store: ObjectSource,
        url: str,
        bearer: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reads: Counter[Whence] = Counter()
        self._store = store
        self._url = url.rstrip("/")
        self._bearer = bearer
        self._clock = clock
        self._away_until_s = float("-inf")
        self._client = httpx.Client(timeout=_TIMEOUT, trust_env=False, headers={"accept-encoding": "identity"})

    def read_small(self, key: str, max_bytes: int) -> bytes:
        return b"".join(self.stream(key, max_bytes))

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        content = self._near(key, max_bytes)
        if content is not None:
            self.reads["cache"] += 1
            yield content
            return
        self.reads["store"] += 1
        yield from self._store.stream(key, max_bytes)

    def close(self) -> None:
        self._client.close()

    def _near(self, key: str, max_bytes: int) -> bytes | None:
        kind = next((kind for prefix, kind in _KINDS.items() if key.startswith(prefix)), None)
        if kind is None or self._clock() < self._away_until_s:
            return None
        sha256 = key.rpartition("/")[2]
        try:
            content = self._read_cache(f"{self._url}/objects/{kind}/{sha256}", max_bytes)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._away_until_s = self._clock() + AWAY_S
            _log.warning("the region's cache does not answer; reading from the store: %r", error)
            return None
        if content is not None and hashlib.sha256(content).hexdigest() != sha256:
            _log.warning("the region's cache returned other content for %s; reading from the store", key)
            return None
        return content

    def _read_cache(self, url: str, max_bytes: int) -> bytes | None:
        """Return an object's bytes from the node cache, or None if the cache refuses or sends more than `max_bytes`.
        Raise httpx.ReadTimeout if it takes longer than ANSWER_S."""
        content, until_s = bytearray(), self._clock() + ANSWER_S
        with self._client.stream("GET", url, headers={"authorization": f"Bearer {self._bearer()}"}) as response:
            if response.status_code != httpx.codes.OK:
                return None
            for block in response.iter_raw():
                content += block
                if len(content) > max_bytes:
                    return None
                if self._clock() > until_s:
                    raise httpx.ReadTimeout(f"not whole within {ANSWER_S:.0f} s")
        return bytes(content)
