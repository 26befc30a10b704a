"""Dynamo's KV router (lib/kv-router: `DefaultWorkerSelector`), in blocks of 16 tokens; the lowest cost is chosen.

    cost     = overlap weight x prefill blocks + decode blocks
    prefill  = (prompt - cached there + tokens of prompts sent there without a first token yet) / 16
    decode   = distinct blocks of the prompts in flight there, with this one's; answers are not counted

The engines' events tell which blocks are cached. Weight and credit are 1. Temperature 0, today's default, chooses the
lowest cost, among equals at random (in Dynamo the one with the smaller tree first). Above 0, a replica is drawn with
the probabilities softmax(-cost / (greatest - least) / temperature), a former default with 0.5. Worked example
(test_worked_example_from_the_prologue): a prompt of 1,600 tokens, of which A has cached 800 and runs nothing else: 50
+ 100 = 150 blocks. B has nothing cached and computes another prompt's 160 tokens: 110 + 110 = 220.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil, exp

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.simulator.router_port import Draws, EngineStates, Question

BLOCK_TOKENS = 16
OVERLAP_WEIGHT = 1.0
SOFT_TEMPERATURE = 0.5


class _Active:
    """Work in flight on one replica."""

    __slots__ = ("blocks", "prefill_tokens", "tail_tokens")

    def __init__(self) -> None:
        self.blocks: Counter[int] = Counter()  # shared blocks count once
        self.tail_tokens = 0  # prompt tokens beyond whole blocks
        self.prefill_tokens = 0

    def decode_blocks(self, asked: Question) -> int:
        new = sum(1 for block in asked.blocks if block not in self.blocks)
        tokens = (len(self.blocks) + new) * asked.block_tokens + self.tail_tokens + _tail_tokens(asked)
        return ceil(tokens / BLOCK_TOKENS)


class Dynamo:
    def __init__(self, engines: EngineStates, rng: Draws, temperature: float = 0.0) -> None:
        self._engines = engines
        self._rng = rng
        self._temperature = temperature
        self._active: dict[ReplicaId, _Active] = {}
        self._under_way: dict[str, tuple[_Active, Question]] = {}
        self._prefill_tokens: dict[str, int] = {}

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        self.ended(asked.key)  # it may have been sent before and failed
        fresh = [asked.prompt_tokens - self._engines.cached_tokens(row[0], asked) for row in rows]
        costs = [self._cost(asked, row[0], tokens) for row, tokens in zip(rows, fresh, strict=True)]
        chosen = self._draw(costs)
        active = self._active.setdefault(rows[chosen][0], _Active())
        active.blocks.update(asked.blocks)
        active.tail_tokens += _tail_tokens(asked)
        active.prefill_tokens += fresh[chosen]
        self._under_way[asked.key] = (active, asked)
        self._prefill_tokens[asked.key] = fresh[chosen]
        return rows[chosen]

    def started(self, key: str) -> None:
        tokens = self._prefill_tokens.pop(key, 0)
        if tokens:
            self._under_way[key][0].prefill_tokens -= tokens

    def ended(self, key: str) -> None:
        self.started(key)
        found = self._under_way.pop(key, None)
        if found is None:
            return
        active, asked = found
        active.tail_tokens -= _tail_tokens(asked)
        for block in asked.blocks:
            if active.blocks[block] == 1:
                del active.blocks[block]
            else:
                active.blocks[block] -= 1

    def _cost(self, asked: Question, replica_id: ReplicaId, fresh_tokens: int) -> float:
        active = self._active.setdefault(replica_id, _Active())
        prefill = (fresh_tokens + active.prefill_tokens) / BLOCK_TOKENS
        return OVERLAP_WEIGHT * prefill + active.decode_blocks(asked)

    def _draw(self, costs: Sequence[float]) -> int:
        least, most = min(costs), max(costs)
        if not self._temperature or least == most:
            return self._rng.choice([index for index, cost in enumerate(costs) if cost == least])
        weights = [exp(-(cost - least) / (most - least) / self._temperature) for cost in costs]
        return self._rng.choices(range(len(costs)), weights)[0]


def _tail_tokens(asked: Question) -> int:
    return max(0, asked.prompt_tokens - len(asked.blocks) * asked.block_tokens)
