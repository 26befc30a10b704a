"""Thousands of requests that end in every possible way: charged tokens must equal the tokens that engines computed.

    charged by an engine's usage   = sum of the engines' own logs of the answers that they finished, to the token
    charged by count               = tokens delivered of the other answers; the engines computed these and at most the
                                     tokens that were still in transit

An engine logs an answer before it sends it. If it is killed in between, or the client has just left, the answer is
logged but never received. Such lines (a second line of an id, or an answer that no client has complete) are reported.
They are the only allowed difference between the two sums.

Clients leave in mid-stream, engines are killed and restarted, requests are retried on other engines. At the end no
request may be open, and every request that began was settled once.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterable

from functions.api.snapshot import QuotaLimitsPart
from loadtests.quotas.client import Answer, Ask, send
from loadtests.quotas.fleet import MODEL, Fleet

_AT_ONCE = 64
_KILL_EACH_S = 6.0
_AWAY_S = 2.0
_LEAVE_RATIO = 0.1
_MANY = 10**9
Row = dict[str, object]


def limits_of() -> QuotaLimitsPart:
    """Return limits of every kind, too high to be reached."""
    return QuotaLimitsPart(
        requests_per_minute=_MANY,
        input_tokens_per_minute=_MANY,
        output_tokens_per_minute=_MANY,
        concurrent_requests=_MANY,
        kv_token_seconds_per_minute=_MANY,
        gpu_seconds_per_hour=_MANY,
    )


async def run(fleet: Fleet, requests: int, say: Callable[[str], None]) -> Row:
    answers: list[Answer] = []
    async with asyncio.TaskGroup() as group:
        background = [group.create_task(fleet.heartbeat())]
        await fleet.ready()
        say(f"{fleet.gateways} gateways and {fleet.engines} engines are ready")
        kills = Counter[str]()
        background.append(group.create_task(_kill_engines(fleet, kills)))
        work = group.create_task(_all(fleet, requests, answers))
        while not work.done():
            await asyncio.wait({work}, timeout=10.0)
            say(f"{len(answers)} of {requests}, {kills.total()} engines killed")
        background[1].cancel()
        await _until_quiet(fleet)
        figures = await fleet.metrics("shoal_")
        background[0].cancel()
        for task in background:
            with contextlib.suppress(asyncio.CancelledError):
                await task
    lines = [line.split() for number in range(fleet.engines) for line in _lines(fleet, number)]
    charged = {kind: int(figures[_settled(kind, "engine")]) for kind in ("input", "cached", "output")}
    computed, unheard = _sums(lines), unheard_of(lines, {answer.request_id for answer in answers if answer.whole})
    between = {kind: computed[kind] - charged[kind] for kind in charged}
    broken = [answer for answer in answers if answer.status == 200 and not answer.whole]
    return {
        "requests": len(answers),
        "answers": dict(Counter(answer.status for answer in answers)),
        "whole": sum(answer.whole for answer in answers),
        "clients that left": sum(answer.left for answer in answers),
        "engines killed": kills.total(),
        "retries": int(figures.get("shoal_retries_total", 0)),
        "charged by usage": charged,
        "computed by engines": computed,
        "equal": charged == computed,
        "noted by engines, heard by nobody": f"{len(unheard)} answers, {_sums(unheard)}",
        "equal but for those": all(0 <= between[kind] <= most for kind, most in _sums(unheard).items()),
        "settled requests": int(sum(figures[f'shoal_quota_settled_requests_total{{by="{by}"}}'] for by in _BY)),
        "charged by count, output": int(figures[_settled("output", "count")]),
        "delivered of those": sum(answer.tokens for answer in broken),
        "under way at the end": int(figures["shoal_open_requests"]),
    }


_BY = ("engine", "count")


def _sums(lines: Iterable[list[str]]) -> dict[str, int]:
    sums = dict.fromkeys(("input", "cached", "output"), 0)
    for _, prompt, cached, output in lines:
        sums["input"] += int(prompt) - int(cached)
        sums["cached"] += int(cached)
        sums["output"] += int(output)
    return sums


def unheard_of(lines: list[list[str]], whole: set[str]) -> list[list[str]]:
    """Return all lines of each request but one; that one as well if no client has the complete answer."""
    seen = set[str]()
    found = []
    for line in sorted(lines):
        if line[0] in seen or line[0] not in whole:
            found.append(line)
        seen.add(line[0])
    return found


async def _all(fleet: Fleet, requests: int, answers: list[Answer]) -> None:
    rng, numbers = random.Random(1), iter(range(requests))

    async def client() -> None:
        for number in numbers:
            max_tokens = rng.randint(5, 60)
            stream = rng.random() < 0.5
            leaves = stream and max_tokens >= 20 and rng.random() < _LEAVE_RATIO / 0.36
            ask = Ask(
                port=rng.choice(fleet.ports),
                api_key=fleet.api_key,
                model=MODEL,
                request_id=f"ledger-{number}",
                prompt=f"{number % 50} " * rng.randint(1, 200),
                max_tokens=max_tokens,
                stream=stream,
                leave_after_tokens=rng.randint(1, max_tokens // 4) if leaves else None,
            )
            answers.append(await send(ask))

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(client())


async def _kill_engines(fleet: Fleet, kills: Counter[str]) -> None:
    """Kill engine after engine, each for 2 s, until cancelled; the others must serve its requests."""
    number = 0
    while True:
        await asyncio.sleep(_KILL_EACH_S)
        fleet.kill(f"engine-{number}")
        kills[f"engine-{number}"] += 1
        await asyncio.sleep(_AWAY_S)
        fleet.start_engine(number)
        number = (number + 1) % fleet.engines


async def _until_quiet(fleet: Fleet) -> None:
    """Wait until no request is open, at most a minute; the table shows the rest."""
    for _ in range(300):
        if not (await fleet.metrics("shoal_open_requests")).get("shoal_open_requests"):
            return
        await asyncio.sleep(0.2)


def _lines(fleet: Fleet, number: int) -> list[str]:
    path = fleet.usage_log(number)
    return path.read_text().splitlines() if path.exists() else []


def _settled(kind: str, by: str) -> str:
    return f'shoal_quota_settled_tokens_total{{by="{by}",kind="{kind}"}}'
