"""Delay that a snapshot swap causes on the serving event loop, measured with a follower and a real registry.

A probe on the same loop sleeps for one millisecond repeatedly. A request would have waited as long as the probe wakes
late. The longest such gap is reported with and without a swap.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from functions.api import snapshot_document as documents
from functions.api.snapshot_index import Indexed, changes_between
from functions.fleet.snapshots import SNAPSHOT_PATH, SnapshotFollower

_PROBE_S = 0.001


@dataclass(slots=True)
class Probe:
    gaps_ms: list[float] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(_PROBE_S)
            self.gaps_ms.append((time.perf_counter() - began_s - _PROBE_S) * 1000)


async def probed(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return the duration of `work` and the longest gap during it, in milliseconds."""
    probe = Probe()
    probing = asyncio.get_running_loop().create_task(probe.run())
    await asyncio.sleep(0.05)
    probe.gaps_ms.clear()
    began_s = time.perf_counter()
    await work()
    took_ms = (time.perf_counter() - began_s) * 1000
    await asyncio.sleep(0.02)
    probing.cancel()
    with suppress(asyncio.CancelledError):
        await probing
    return took_ms, max(probe.gaps_ms)


class Rig:
    def __init__(self, url: str, token: str, cache_file: Path) -> None:
        self.client = httpx.AsyncClient(timeout=120, headers={"authorization": f"Bearer {token}"})
        self._url = url + SNAPSHOT_PATH
        self.follower = self._follower(url, token, cache_file)

    def _follower(self, url: str, token: str, cache_file: Path) -> SnapshotFollower:
        return SnapshotFollower(
            client=self.client, registry_url=url, token=token, cache_file=cache_file, on_swap=lambda _: None
        )

    async def publish(self, new: Indexed, base: Indexed | None) -> tuple[float, int]:
        """Publish and return the milliseconds until the registry has stored it, and the number of bytes sent."""
        document = self.delta(new, base) if base is not None else b"".join(documents.full_lines(new.snapshot))
        return await self.put(document), len(document)

    def delta(self, new: Indexed, base: Indexed) -> bytes:
        return b"".join(documents.delta_lines(new.snapshot, base.content_hash, changes_between(base, new)))

    async def put(self, document: bytes) -> float:
        began_s = time.perf_counter()
        answer = await self.client.put(self._url, content=document)
        answer.raise_for_status()
        return (time.perf_counter() - began_s) * 1000

    async def swap(self) -> None:
        if not await self.follower.poll():
            raise RuntimeError("the registry has no new snapshot")

    async def idle(self) -> None:
        await asyncio.sleep(0.05)
