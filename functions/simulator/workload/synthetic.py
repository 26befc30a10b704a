"""Traffic that nobody recorded: tenants by Zipf's law, chats that grow turn by turn, bursts. The same seed, the same.

    rate of new chats  = requests per second / mean turns
    a turn's prompt    = the tenant's system prompt + all before it + a new question
    gaps               = gamma distributed with the coefficient of variation asked for; 1 is Poisson

Chats have begun before the first request that is told of, so that the first second is like all others
(test_the_rate_is_even).

Lengths are log-normal with the medians asked for. Worked example (test_a_chat_shares_its_beginning): with blocks of 16
tokens, a system prompt of 320 and a question of 40 tokens, the second turn's first 20 blocks are the tenant's own, the
next ones the chat's.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import exp, log
from random import Random

from functions.api.ids import TenantId
from functions.simulator.workload.asked import Asked

BLOCK_TOKENS = 64
_MOST_TOKENS = 32_000
_MOST_TURNS = 200
_CHATS_BEFORE = 6  # mean lengths of a chat: by then, as many end as begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    requests_per_s: float
    seconds: float
    tenants: int = 20
    zipf: float = 1.0  # the exponent: 0 is everybody alike
    burstiness: float = 1.0  # coefficient of variation of the gaps between chats
    turns: int = 4  # of a chat, on average
    thinking_s: float = 10.0
    system_tokens: int = 512
    question_tokens: int = 120  # median
    answer_tokens: int = 150  # median
    spread: float = 0.8  # of the logarithm of lengths
    batch_ratio: float = 0.0  # of all requests, in band `batch`


def synthetic(traffic: Traffic, seed: int) -> Iterator[Asked]:
    rng = Random(seed)  # noqa: S311 - the same seed, the same traffic
    weights = list(accumulate((rank + 1) ** -traffic.zipf for rank in range(traffic.tenants)))
    chats_per_s = traffic.requests_per_s / max(1, traffic.turns)
    shape = 1 / traffic.burstiness**2
    due: list[tuple[float, int, _Chat]] = []
    number, next_s = 0, -_CHATS_BEFORE * traffic.turns * (traffic.thinking_s + 0.015 * traffic.answer_tokens)
    while True:
        while next_s <= traffic.seconds and (not due or due[0][0] >= next_s):
            number += 1
            tenant = bisect_left(weights, rng.random() * weights[-1])
            turns = (
                1 + min(200, int(rng.expovariate(1 / max(0.01, traffic.turns - 1)) + 0.5)) if traffic.turns > 1 else 1
            )
            heappush(due, (next_s, number, _Chat(number, tenant, turns, traffic, rng)))
            next_s += rng.gammavariate(shape, 1 / (chats_per_s * shape))
        if not due:
            return
        at_s, key, chat = heappop(due)
        if at_s > traffic.seconds:
            continue
        asked = chat.ask(at_s)
        if at_s >= 0.0:
            yield asked
        if chat.turns:
            wait_s = rng.expovariate(1 / traffic.thinking_s) + asked.output_tokens * 0.015
            heappush(due, (at_s + wait_s, key, chat))


def _turns(rng: Random, mean: int) -> int:
    """Geometric, so that a chat's age says nothing of how long it will go on."""
    turns = 1
    while turns < _MOST_TURNS and rng.random() > 1 / mean:
        turns += 1
    return turns


class _Chat:
    __slots__ = ("_band", "_blocks", "_prompt_tokens", "_rng", "_tenant", "_traffic", "number", "turns")

    def __init__(self, number: int, tenant: int, turns: int, traffic: Traffic, rng: Random) -> None:
        self.number = number
        self.turns = turns
        self._tenant = tenant
        self._traffic = traffic
        self._rng = rng
        self._band = 2 if rng.random() < traffic.batch_ratio else 0
        self._prompt_tokens = traffic.system_tokens
        self._blocks = [-1 - (tenant * 10_000 + index) for index in range(traffic.system_tokens // BLOCK_TOKENS)]

    def ask(self, at_s: float) -> Asked:
        self._grow(self._length(self._traffic.question_tokens))
        prompt_tokens, blocks = self._prompt_tokens, tuple(self._blocks)
        output_tokens = self._length(self._traffic.answer_tokens)
        self._grow(output_tokens)
        self.turns = self.turns - 1 if self._prompt_tokens < _MOST_TOKENS else 0
        return Asked(
            at_s, TenantId(f"t{self._tenant}"), prompt_tokens, output_tokens,
            band=self._band, blocks=blocks, session=f"chat-{self.number}",
        )  # fmt: skip

    def _grow(self, tokens: int) -> None:
        self._prompt_tokens += tokens
        while len(self._blocks) < self._prompt_tokens // BLOCK_TOKENS:
            self._blocks.append(self.number * 1000 + len(self._blocks))

    def _length(self, median: int) -> int:
        return max(1, min(_MOST_TOKENS, int(exp(self._rng.gauss(log(median), self._traffic.spread)))))
