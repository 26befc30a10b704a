"""Requests admitted within a window under a limit that several gateways share.

Where more than the limit is offered, it is drained first, so that what passes in the window is what flows in: limit x
window / 60 s. Rates below the limit pass whole. A request is judged some time between its being asked and answered,
seconds apart on a busy machine: what was answered within the window was judged in it, and must not be too much; what
was asked in it can use all that flows in until its end, and must not be too little.
"""

import asyncio
import time
from dataclasses import dataclass, field

import httpx

RATES_PER_S = (1.5, 3.0, 10.0)
EXACT = 0.02
POLITE_AT_ONCE = 4
_AT_ONCE, _AT_ONCE_MOST = 16, 64
_DRAINED_S = 120.0
_IN_HAND = 2.0  # requests: each of three gateways may hold part of one when the window starts


@dataclass(slots=True)
class Window:
    """Times at which requests passed or were rejected, in seconds since the drain."""

    name: str
    length_s: float
    began_s: float
    passed_s: list[float] = field(default_factory=list)  # sent in the window
    answered_s: list[float] = field(default_factory=list)  # times of the answers to those requests
    refused: int = 0
    other: list[int] = field(default_factory=list)

    def within(self) -> int:
        """Return the number of requests sent and answered in the window."""
        return sum(at_s < self.length_s for at_s in self.answered_s)

    def words(self) -> str:
        tens = [
            sum(10 * ten <= at_s < 10 * (ten + 1) for at_s in self.passed_s) for ten in range(int(self.length_s // 10))
        ]
        late = max((answer - ask for ask, answer in zip(self.passed_s, self.answered_s, strict=True)), default=0.0)
        strange = f", and {self.other}" if self.other else ""
        passed = f"{len(self.passed_s)} passed, {self.within()} of them in the window (answers up to {late:.1f} s late)"
        return f"{self.name}: {passed}, {self.refused} refused{strange}; each 10 s: {tens}"

    def is_exact(self, allowed: float) -> bool:
        """Return True if the count is within 2 % of what may pass; in a short window, within `_IN_HAND` requests."""
        spare = max(_IN_HAND, EXACT * allowed)
        return not self.other and self.within() <= allowed + spare and len(self.passed_s) >= allowed - spare


def allowed_in(length_s: float, per_minute: int, rate_per_s: float = float("inf")) -> float:
    return min(per_minute / 60, rate_per_s) * length_s


def is_drained(per_minute: int, rate_per_s: float) -> bool:
    return rate_per_s * 60 > per_minute


async def offered(
    client: httpx.AsyncClient, model: str, name: str, rate_per_s: float, length_s: float, *, drained: bool
) -> Window:
    """Send requests at a constant rate, whatever the answers are."""
    if drained:
        await _drain(client, model)
    window = Window(name, length_s, time.monotonic())
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate_per_s * length_s)):
            await asyncio.sleep(max(0.0, window.began_s + number / rate_per_s - time.monotonic()))
            group.create_task(_send_counted(client, model, window))
    return window


async def polite(client: httpx.AsyncClient, model: str, name: str, length_s: float) -> Window:
    """Run a few clients that each wait as long as Retry-After says."""
    await _drain(client, model)
    window = Window(name, length_s, time.monotonic())

    async def caller() -> None:
        while time.monotonic() < window.began_s + length_s:
            await asyncio.sleep(await _send_counted(client, model, window))

    await asyncio.gather(*(caller() for _ in range(POLITE_AT_ONCE)))
    return window


async def _drain(client: httpx.AsyncClient, model: str) -> None:
    """Send groups of requests until most of a group are rejected; only the inflow since then is left.

    Groups grow: if sixteen answers take longer than the inflow of sixteen, no group of that size is ever rejected.
    """
    until_s, at_once = time.monotonic() + _DRAINED_S, _AT_ONCE
    while time.monotonic() < until_s:
        answers = await asyncio.gather(*(_post(client, model) for _ in range(at_once)))
        if sum(answer.status_code == 429 for answer in answers) > at_once // 2:
            return
        at_once = min(2 * at_once, _AT_ONCE_MOST)
    raise AssertionError(f"not drained within {_DRAINED_S:.0f} s: fewer requests are answered than the limit allows")


async def _send_counted(client: httpx.AsyncClient, model: str, window: Window) -> float:
    """Send a request and return the seconds to wait; count it if it was sent within the window."""
    asked_s = time.monotonic() - window.began_s
    answer = await _post(client, model)
    if answer.status_code == 429:
        window.refused += 1
        return int(answer.headers["retry-after-ms"]) / 1000
    if answer.status_code != 200:
        window.other.append(answer.status_code)
    elif asked_s < window.length_s:
        window.passed_s.append(asked_s)
        window.answered_s.append(time.monotonic() - window.began_s)
    return 0.0


async def _post(client: httpx.AsyncClient, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return await client.post("/chat/completions", json=body)
