"""Limits that several gateways share: what is allowed passes, no more, at every rate, and a polite client has it all.

Where more than the limit is offered, it is drained first, so that what passes in the window is what flows in: limit x
window / 60 s. Rates below the limit pass whole. A request is judged some time between its being asked and answered,
seconds apart on a busy cluster: what was answered within the window was judged in it, and must not be too much; what
was asked in it can use all that flows in until its end, and must not be too little.
"""

import asyncio
import time
from dataclasses import dataclass, field

import httpx
import pytest

from tests.cluster.conftest import Accounts
from tests.cluster.installation import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
RATES_PER_S = (1.5, 3.0, 10.0)
WINDOW_S = 60.0
POLITE_AT_ONCE = 4
_AT_ONCE = 16


@dataclass(slots=True)
class Window:
    """When requests passed or were refused, since the drain; seconds."""

    name: str
    began_s: float
    passed_s: list[float] = field(default_factory=list)  # asked in the window
    answered_s: list[float] = field(default_factory=list)  # of these
    refused: int = 0
    other: list[int] = field(default_factory=list)

    def within(self) -> int:
        """Asked and answered in the window."""
        return sum(at_s < WINDOW_S for at_s in self.answered_s)

    def words(self) -> str:
        tens = [sum(10 * ten <= at_s < 10 * (ten + 1) for at_s in self.passed_s) for ten in range(int(WINDOW_S // 10))]
        late = max((answer - ask for ask, answer in zip(self.passed_s, self.answered_s, strict=True)), default=0.0)
        strange = f", and {self.other}" if self.other else ""
        passed = f"{len(self.passed_s)} passed, {self.within()} of them in the window (answers up to {late:.1f} s late)"
        return f"{self.name}: {passed}, {self.refused} refused{strange}; each 10 s: {tens}"


@pytest.mark.parametrize("per_minute", [60, 300])
async def test_a_shared_limit_is_exact(installation: Installation, accounts: Accounts, per_minute: int) -> None:
    """Every rate has a tenant of its own with the same limit, and all are measured at once."""
    names = [*(f"{rate:g}/s" for rate in RATES_PER_S), "polite"]
    keys = [
        accounts.add(f"acceptance-{per_minute}-{number}", requestsPerMinute=per_minute) for number in range(len(names))
    ]
    offered = [
        _offered(installation, *each, drained=each[-1] * 60 > per_minute)
        for each in zip(keys, names, RATES_PER_S, strict=False)
    ]
    windows = await asyncio.gather(*offered, _polite(installation, keys[-1], names[-1]))
    allowed = per_minute * WINDOW_S / 60
    print(f"limit {per_minute} a minute, {len(installation.pods('gateway'))} gateways, {WINDOW_S:.0f} s")
    for window in windows:
        print("  " + window.words())
    for window, rate in zip(windows, [*RATES_PER_S, float("inf")], strict=True):
        expected = min(allowed, rate * WINDOW_S)
        assert not window.other
        assert window.within() <= expected + max(2, 0.02 * expected), window.words()
        assert len(window.passed_s) >= 0.95 * expected - 1, window.words()


async def _offered(installation: Installation, key: str, name: str, rate_per_s: float, *, drained: bool) -> Window:
    """So many a second, whatever the answers are."""
    async with installation.async_client(key) as client:
        if drained:
            await _drain(client, installation.pool)
        window = Window(name, time.monotonic())
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate_per_s * WINDOW_S)):
                await asyncio.sleep(max(0.0, window.began_s + number / rate_per_s - time.monotonic()))
                group.create_task(_ask(client, installation.pool, window))
        return window


async def _polite(installation: Installation, key: str, name: str) -> Window:
    """A few callers, each of which waits as long as it is told to."""
    async with installation.async_client(key) as client:
        await _drain(client, installation.pool)
        window = Window(name, time.monotonic())

        async def caller() -> None:
            while time.monotonic() < window.began_s + WINDOW_S:
                await asyncio.sleep(await _ask(client, installation.pool, window))

        await asyncio.gather(*(caller() for _ in range(POLITE_AT_ONCE)))
        return window


async def _drain(client: httpx.AsyncClient, model: str) -> None:
    """Until most of a handful at once are refused: what is left is what flowed in meanwhile."""
    refused = 0
    while refused <= _AT_ONCE // 2:
        answers = await asyncio.gather(*(_post(client, model) for _ in range(_AT_ONCE)))
        refused = sum(answer.status_code == 429 for answer in answers)


async def _ask(client: httpx.AsyncClient, model: str, window: Window) -> float:
    """Seconds to wait; counted by when it was asked, if that was within the window."""
    asked_s = time.monotonic() - window.began_s
    answer = await _post(client, model)
    if answer.status_code == 429:
        window.refused += 1
        return int(answer.headers["retry-after-ms"]) / 1000
    if answer.status_code != 200:
        window.other.append(answer.status_code)
    elif asked_s < WINDOW_S:
        window.passed_s.append(asked_s)
        window.answered_s.append(time.monotonic() - window.began_s)
    return 0.0


async def _post(client: httpx.AsyncClient, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    return await client.post("/chat/completions", json=body)
