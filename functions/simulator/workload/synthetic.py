"""Synthetic traffic: chats that grow turn by turn, started by a crowd of tenants; deterministic for a seed.

    rate of new chats  = requests per second / mean turns
    turns of a chat    geometric, so that a chat's age says nothing of how long it will go on
    a turn's prompt    = the system prompt of the tenant (or of its adapter) + all before it + a new question
    lengths            log-normal with the given medians

Chats start before the first request that is yielded, so that the first second is like all others
(test_generated_rate_is_even). The daily curve and spikes apply to new chats; requests of later turns follow with a
delay. Traffic with more than half a million chats in progress is rejected; with one turn per chat there is no limit.

Worked example (test_turns_of_a_chat_share_a_prefix): with blocks of 64 tokens and a system prompt of 512, the first 8
blocks of every turn are the tenant's own, the next ones the chat's. A request costs about 5 us. `crowd` gives the
start times; for several pools, `merged` combines several `synthetic`s.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from math import log
from operator import attrgetter
from random import Random

from functions.api.ids import TenantId
from functions.simulator.workload.crowd import Begun, Crowd, Spike, begun, log_normal_tokens
from functions.simulator.workload.request import WorkloadRequest

BLOCK_TOKENS = 64
_MOST_TOKENS = 32_000
_MOST_TURNS = 200
_MOST_CHATS = 500_000
_CHATS_BEFORE = 6  # mean lengths of a chat; after that, chats end as often as they start
_TOKEN_S = 0.015  # assumed seconds per token of an answer, before the next question
_BLOCK_NAMES = 2048  # per chat: 64,000 tokens in blocks of 64 are 1,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    requests_per_s: float
    seconds: float
    tenants: int = 20
    zipf: float = 1.0  # exponent; 0: all tenants are alike
    burstiness: float = 1.0  # coefficient of variation of a tenant's gaps between chats; the median of all tenants
    burstiness_p95: float | None = None  # 95th percentile over tenants; None: all are alike
    turns: int = 4  # mean per chat
    thinking_s: float = 10.0
    system_tokens: int = 512
    question_tokens: int = 120  # median
    answer_tokens: int = 150  # median
    spread: float = 0.8  # standard deviation of the logarithm of lengths
    batch_ratio: float = 0.0  # share of chats in band `batch`
    adapters: int = 0
    adapter_ratio: float = 0.17  # share of all chats, if there are adapters
    adapter_zipf: float = 1.0
    swing_ratio: float = 0.0  # amplitude of the daily curve, relative to the rate
    day_s: float = 86_400.0
    spikes: tuple[Spike, ...] = ()
    pool: str | None = None

    def __post_init__(self) -> None:
        chats = self.requests_per_s * (self.thinking_s + _TOKEN_S * self.answer_tokens)
        if self.turns > 1 and chats > _MOST_CHATS:
            raise ValueError(
                f"{chats:,.0f} chats would be under way, {_MOST_CHATS:,} may be: ask for turns=1 or less thinking_s"
            )


def synthetic(traffic: Traffic, seed: int) -> Iterator[WorkloadRequest]:
    """Yield the requests of synthetic chats in order of time; the same seed yields the same requests."""
    rng = Random(seed)  # noqa: S311 - the same seed, the same traffic
    due: list[tuple[float, int, _Chat]] = []  # next turns
    for number, new in enumerate(begun(_crowd(traffic), _begins_s(traffic), traffic.seconds, seed), 1):
        while due and due[0][0] <= new.at_s:
            yield from _turn(due, traffic)
        heappush(due, (new.at_s, number, _Chat(number, new, traffic, rng)))
    while due:
        yield from _turn(due, traffic)


def merged(*parts: Iterable[WorkloadRequest]) -> Iterator[WorkloadRequest]:
    """Combine several workloads in order of time."""
    return merge(*parts, key=attrgetter("at_s"))


def _turn(due: list[tuple[float, int, "_Chat"]], traffic: Traffic) -> Iterator[WorkloadRequest]:
    at_s, number, chat = heappop(due)
    if at_s > traffic.seconds:
        return
    request = chat.next_request(at_s)
    if at_s >= 0.0:
        yield request
    if chat.turns:
        heappush(due, (at_s + chat.pause_s(request), number, chat))


def _crowd(traffic: Traffic) -> Crowd:
    return Crowd(
        chats_per_s=traffic.requests_per_s / max(1, traffic.turns), tenants=traffic.tenants, zipf=traffic.zipf,
        burstiness=traffic.burstiness, burstiness_p95=traffic.burstiness_p95, adapters=traffic.adapters,
        adapter_ratio=traffic.adapter_ratio, adapter_zipf=traffic.adapter_zipf, swing_ratio=traffic.swing_ratio,
        day_s=traffic.day_s, spikes=traffic.spikes,
    )  # fmt: skip


def _begins_s(traffic: Traffic) -> float:
    if traffic.turns <= 1:
        return 0.0
    return -_CHATS_BEFORE * traffic.turns * (traffic.thinking_s + _TOKEN_S * traffic.answer_tokens)


def _turns(rng: Random, mean: int) -> int:
    if mean <= 1:
        return 1
    return min(_MOST_TURNS, 1 + int(log(1.0 - rng.random()) / log(1.0 - 1.0 / mean)))


class _Chat:
    __slots__ = ("_adapter", "_band", "_common", "_name", "_prompt_tokens", "_rng", "_tenant", "_traffic", "turns")

    def __init__(self, number: int, new: Begun, traffic: Traffic, rng: Random) -> None:
        self.turns = _turns(rng, traffic.turns)
        self._name = number
        self._tenant = new.tenant
        self._adapter = new.adapter
        self._traffic = traffic
        self._rng = rng
        self._band = 2 if rng.random() < traffic.batch_ratio else 0
        self._prompt_tokens = traffic.system_tokens
        self._common = new.tenant if new.adapter is None else traffic.tenants + new.adapter

    def next_request(self, at_s: float) -> WorkloadRequest:
        traffic, adapter = self._traffic, self._adapter
        self._prompt_tokens += self._length(traffic.question_tokens)
        prompt_tokens = self._prompt_tokens
        output_tokens = self._length(traffic.answer_tokens)
        blocks = self._blocks(prompt_tokens)
        self._prompt_tokens += output_tokens
        self.turns = self.turns - 1 if self._prompt_tokens < _MOST_TOKENS else 0
        return WorkloadRequest(
            at_s, TenantId(f"t{self._tenant}"), prompt_tokens, output_tokens,
            band=self._band, blocks=blocks, session=f"chat-{self._name}",
            adapter=None if adapter is None else f"a{adapter}", pool=traffic.pool,
        )  # fmt: skip

    def pause_s(self, request: WorkloadRequest) -> float:
        """Return the seconds to the next question: the time of the answer, and of reading it."""
        return self._rng.expovariate(1 / max(1e-3, self._traffic.thinking_s)) + request.output_tokens * _TOKEN_S

    def _blocks(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return the blocks' names; those of the system prompt are negative."""
        system = self._traffic.system_tokens // BLOCK_TOKENS
        common = -1 - self._common * _BLOCK_NAMES
        own = self._name * _BLOCK_NAMES
        return (*range(common, common - system, -1), *range(own + system, own + prompt_tokens // BLOCK_TOKENS))

    def _length(self, median: int) -> int:
        return log_normal_tokens(self._rng.gauss(0.0, 1.0), median, self._traffic.spread, _MOST_TOKENS)
