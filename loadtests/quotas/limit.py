"""One tenant at a multiple of its limit, over several gateways: what it is given in any minute.

    charged     in any minute at most limit + burst (2 %, or --burst-seconds), with the bus killed and restored one more
    delivered   the same, and what was charged before the minute began and came in it ("carried in")
    leases      at most the burst is outstanding at all gateways together, which is part of the bound

What is delivered lies behind what is charged by the time an answer takes: the first minute is short by that much, and
where streams stand still for want of CPU and go on all at once, one minute has what another one was charged for. So
both are told, and how often gateways lost touch with the bus, which an outage alone should make them do.
"""

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Callable

from functions.api.snapshot import QuotaLimitsPart
from functions.decisions.quota.token_bucket import burst_of
from loadtests.quotas.client import Answer, Ask, send
from loadtests.quotas.fleet import MODEL, Fleet
from loadtests.quotas.windows import minutes

_LEAST_TOKENS, _MOST_TOKENS = 30, 90
_MEAN_TOKENS = (_LEAST_TOKENS + _MOST_TOKENS) / 2
_LEARNING_S = 2.0  # a bus that has just begun keeps bursts back for a second: they shall be there
Row = dict[str, object]


def limits_of(tokens_per_minute: int, burst_s: int) -> QuotaLimitsPart:
    return QuotaLimitsPart(
        output_tokens_per_minute=tokens_per_minute,
        requests_per_minute=10**6,
        concurrent_requests=10_000,
        token_burst_seconds=burst_s,
    )


async def run(fleet: Fleet, seconds: float, factor: float, outage: bool, say: Callable[[str], None]) -> Row:
    """Offer `factor` times the limit for so long, half of it in streams; `outage`: the middle third without a bus."""
    limit = fleet.limits.output_tokens_per_minute or 0
    loop, answers = asyncio.get_running_loop(), list[Answer]()
    async with asyncio.TaskGroup() as group:
        beating = group.create_task(fleet.heartbeat())
        await fleet.ready()
        say(f"{fleet.gateways} gateways and {fleet.engines} engines are ready")
        await _until_shared(fleet)
        await asyncio.sleep(_LEARNING_S)
        start_s = loop.time()
        bus = group.create_task(_outage(fleet, seconds, say)) if outage else None
        requests = group.create_task(_offer(fleet, seconds, limit * factor / 60 / _MEAN_TOKENS, answers))
        while not requests.done():
            await asyncio.wait({requests}, timeout=10.0)
            came = sum(answer.tokens for answer in answers)
            say(f"{loop.time() - start_s:3.0f} s  {len(answers)} answers, {came} tokens")
        if bus is not None:
            await bus
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating
    delivered = [piece for answer in answers for piece in answer.delivered]
    least, most = minutes(delivered, start_s, start_s + seconds)
    admitted = minutes([(answer.sent_s, answer.tokens) for answer in answers], start_s, start_s + seconds)
    burst = burst_of(limit, limit * (fleet.limits.token_burst_seconds or 0) // 60)
    asks = await fleet.metrics("shoal_quota_asks_total")
    return {
        "gateways": fleet.gateways,
        "limit a minute": limit,
        "offered": f"{factor:g}x",
        "bus": "away for a third" if outage else "there",
        "answers": dict(Counter(answer.status for answer in answers)),
        "least minute / limit": _ratio(least, limit),
        "most minute / limit": _ratio(most, limit),
        "least minute / limit, by when it was sent": _ratio(admitted.least, limit),
        "most minute / limit, by when it was sent": _ratio(admitted.most, limit),
        "carried in at most / limit": _ratio(_carried_in(answers, start_s, start_s + seconds), limit),
        "touch lost": fleet.said("limits are kept without the bus"),
        "first minute / limit": _ratio(sum(n for at, n in delivered if at <= start_s + 60.0), limit),
        "bound / limit": 1 + (2 if outage else 1) * burst / limit,
        "leases at most / limit": burst / limit,
        "asks": {name.split('"')[1]: int(value) for name, value in asks.items()},
    }


async def _offer(fleet: Fleet, seconds: float, per_s: float, answers: list[Answer]) -> None:
    """Open loop: a request is sent when its time has come, whatever became of those before."""
    loop, rng = asyncio.get_running_loop(), random.Random(1)
    start_s = next_s = loop.time()
    async with asyncio.TaskGroup() as group:
        while next_s - start_s < seconds:
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            ask = Ask(
                port=rng.choice(fleet.ports),
                api_key=fleet.api_key,
                model=MODEL,
                request_id=f"load-{secrets.token_hex(8)}",
                prompt="Tell me more. " * rng.randint(1, 20),
                max_tokens=rng.randint(_LEAST_TOKENS, _MOST_TOKENS),
                stream=rng.random() < 0.5,
            )
            group.create_task(_keep(ask, answers))
            next_s += rng.expovariate(per_s)


async def _keep(ask: Ask, answers: list[Answer]) -> None:
    answers.append(await send(ask))


async def _outage(fleet: Fleet, seconds: float, say: Callable[[str], None]) -> None:
    await asyncio.sleep(seconds / 3)
    fleet.kill("bus")
    say("the bus is killed")
    await asyncio.sleep(seconds / 3)
    fleet.start_bus()
    say("the bus is back, and knows nothing")


async def _until_shared(fleet: Fleet) -> None:
    """Every gateway knows of the others."""
    for _ in range(300):
        if (await fleet.metrics("shoal_quota_gateways")).get("shoal_quota_gateways") == fleet.gateways**2:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the gateways have not found each other; their logs are in {fleet.folder}")


def _carried_in(answers: list[Answer], start_s: float, end_s: float) -> int:
    """The most that was under way at one time and came later."""
    most = 0
    for at_s in range(int(start_s), int(end_s)):
        under_way = [answer for answer in answers if answer.sent_s <= at_s]
        most = max(most, sum(tokens for answer in under_way for came_s, tokens in answer.delivered if came_s > at_s))
    return most


def _ratio(tokens: int | None, limit: int) -> float | None:
    return None if tokens is None else round(tokens / limit, 4)
