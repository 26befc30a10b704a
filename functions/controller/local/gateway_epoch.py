"""Which snapshot the gateway uses: its own word, from its metrics port."""

import asyncio
from collections.abc import Callable

import httpx

from functions.controller.local.context import HOST

METRIC = b"shoal_snapshot_epoch "
TIMEOUT_S = 2.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25  # rendering metrics costs the gateway milliseconds


class GatewayEpoch:
    """Owned by one event loop."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def read(self) -> int | None:
        """The epoch; None where the gateway does not say."""
        try:
            answer = await self._client.get(f"http://{HOST}:{self._port()}/metrics")
            line = next(line for line in answer.content.splitlines() if line.startswith(METRIC))
            return int(float(line.removeprefix(METRIC)))
        except (httpx.HTTPError, StopIteration, ValueError):
            return None

    async def until(self, epoch: int, deadline_s: float) -> bool:
        """Wait until it uses this epoch or a later one; False when it did not by the deadline (loop time)."""
        pause_s = _FIRST_PAUSE_S
        while (await self.read() or 0) < epoch:
            if asyncio.get_running_loop().time() + pause_s > deadline_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    async def close(self) -> None:
        await self._client.aclose()
