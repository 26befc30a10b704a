"""One tenant that offers a multiple of its limit over several gateways: tokens that it gets in any minute.

    charged     at most limit + burst (2 %, or --burst-seconds) in any minute; one burst more if the bus is killed
    delivered   the same, plus tokens that were charged before the minute and delivered in it ("carried in")
    leases      at most the burst is leased to all gateways together; it is part of the bound

Delivery follows the charge by the duration of an answer. The first minute is short by that much. If streams stall for
lack of CPU and then continue together, a minute contains tokens that were charged in another. Both figures are
therefore reported, with the number of times that gateways lost the bus, which only an outage should cause.
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
_LEARNING_S = 2.0  # a new bus withholds bursts for a second; wait until they are available
Row = dict[str, object]


def limits_of(tokens_per_minute: int, burst_s: int) -> QuotaLimitsPart:
    return QuotaLimitsPart(
        output_tokens_per_minute=tokens_per_minute,
        requests_per_minute=10**6,
        concurrent_requests=10_000,
        token_burst_seconds=burst_s,
    )


async def run(fleet: Fleet, seconds: float, factor: float, outage: bool, say: Callable[[str], None]) -> Row:
    """Offer `factor` times the limit for `seconds`, half in streams; `outage` kills the bus for the middle third."""
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
        "touch lost": fleet.count_in_logs("limits are kept without the bus"),
        "first minute / limit": _ratio(sum(n for at, n in delivered if at <= start_s + 60.0), limit),
        "bound / limit": 1 + (2 if outage else 1) * burst / limit,
        "leases at most / limit": burst / limit,
        "asks": {name.split('"')[1]: int(value) for name, value in asks.items()},
    }


async def _offer(fleet: Fleet, seconds: float, per_s: float, answers: list[Answer]) -> None:
    """Send requests in an open loop: each at its time, independent of earlier answers."""
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
            group.create_task(_send_and_record(ask, answers))
            next_s += rng.expovariate(per_s)


async def _send_and_record(ask: Ask, answers: list[Answer]) -> None:
    answers.append(await send(ask))


async def _outage(fleet: Fleet, seconds: float, say: Callable[[str], None]) -> None:
    await asyncio.sleep(seconds / 3)
    fleet.kill("bus")
    say("the bus is killed")
    await asyncio.sleep(seconds / 3)
    fleet.start_bus()
    say("the bus is back, without data")


async def _until_shared(fleet: Fleet) -> None:
    """Wait until every gateway knows all gateways."""
    for _ in range(300):
        if (await fleet.metrics("shoal_quota_gateways")).get("shoal_quota_gateways") == fleet.gateways**2:
            return
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the gateways have not found each other; their logs are in {fleet.folder}")


def _carried_in(answers: list[Answer], start_s: float, end_s: float) -> int:
    """Return the maximum, over all seconds, of tokens that open requests received after that second."""
    most = 0
    for at_s in range(int(start_s), int(end_s)):
        under_way = [answer for answer in answers if answer.sent_s <= at_s]
        most = max(most, sum(tokens for answer in under_way for came_s, tokens in answer.delivered if came_s > at_s))
    return most


def _ratio(tokens: int | None, limit: int) -> float | None:
    return None if tokens is None else round(tokens / limit, 4)
