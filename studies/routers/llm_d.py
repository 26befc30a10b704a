"""llm-d's router (endpoint picker): a sum of weighted scores between 0 and 1; the highest is chosen.

    queue     (most waiting - waiting) / (most - fewest waiting); 1 for all if they are equal              weight 2
    kv        1 - usage of the KV cache                                                                    weight 2
    prefix    matched blocks / blocks of the prompt                                                        weight 3

Equal scores are decided at random. Waiting and usage come from the engines' metrics, which llm-d reads every 50 ms;
here they are always current, which favours it. `LLMD` is the default profile, whose prefix score uses its own routing
history: chains of at most 256 blocks of 16 tokens, and for each replica a table as large as its cache. `LLMDPrecise`
has an index fed by the engines' events. Its scores are spread over the range found, so that of replicas with a match
the smallest gets 0 (`indexedScoresToNormalizedScoredPods`); a single one gets 1. Worked example
(test_prefix_match_outweighs_a_queue_only_if_it_is_long): A has 4 of 5 blocks and 3 waiting requests, B has nothing
and no waiting requests; both caches are half full. A: 0 + 1 + 3 x 0.8 = 3.4, B: 2 + 1 = 3.0. With 3 of 5: 2.8, and B.
"""

from collections.abc import Mapping, Sequence

from functions.api.ids import ReplicaId
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.simulator.router_port import Draws, EngineStates, Question
from studies.routers.block_owners import BlockOwners

QUEUE_WEIGHT, KV_WEIGHT, PREFIX_WEIGHT = 2.0, 2.0, 3.0
MOST_MATCHED_TOKENS = 256 * 16


class LLMD:
    def __init__(self, engines: EngineStates, rng: Draws) -> None:
        self._engines = engines
        self._rng = rng
        self._owners: dict[ReplicaId, BlockOwners] = {}

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        prefixes = self._prefix_scores(asked, rows)
        engines = [self._engines.engine(row[0]) for row in rows]
        most, fewest = max(now.waiting for now in engines), min(now.waiting for now in engines)
        scores = []
        for row, now in zip(rows, engines, strict=True):
            queue = (most - now.waiting) / (most - fewest) if most > fewest else 1.0
            scores.append(
                QUEUE_WEIGHT * queue
                + KV_WEIGHT * (1.0 - now.kv_usage_ratio)
                + PREFIX_WEIGHT * prefixes.get(row[0], 0.0)
            )
        best = max(scores)
        chosen = self._rng.choice([row for row, score in zip(rows, scores, strict=True) if score == best])
        self._sent(asked, chosen)
        return chosen

    def started(self, key: str) -> None:
        """Do nothing: the state comes from the engines."""

    def ended(self, key: str) -> None:
        """Do nothing: the state comes from the engines."""

    def _prefix_scores(self, asked: Question, rows: Sequence[Row]) -> Mapping[ReplicaId, float]:
        blocks = _looked_at(asked)
        if not blocks:
            return {}
        whole = max(1, min(asked.prompt_tokens, MOST_MATCHED_TOKENS) // asked.block_tokens)
        scores = {}
        for row in rows:
            owners = self._owners.get(row[0])
            if owners is not None:
                scores[row[0]] = owners.matched(blocks, row[:1]).get(row[0], 0) / whole
        return scores

    def _sent(self, asked: Question, row: Row) -> None:
        owners = self._owners.get(row[0])
        if owners is None:
            owners = self._owners[row[0]] = BlockOwners(row[6].kv_capacity_tokens // asked.block_tokens)
        owners.enter(_looked_at(asked), row[0])


class LLMDPrecise(LLMD):
    def _prefix_scores(self, asked: Question, rows: Sequence[Row]) -> Mapping[ReplicaId, float]:
        tokens = {row[0]: self._engines.cached_tokens(row[0], asked) for row in rows} if asked.blocks else {}
        found = {replica_id: count for replica_id, count in tokens.items() if count}
        if not found:
            return {}
        most, least = max(found.values()), min(found.values())
        return {name: (count - least) / (most - least) if most > least else 1.0 for name, count in found.items()}

    def _sent(self, asked: Question, row: Row) -> None:
        """Do nothing: the engines' events update the index."""


def _looked_at(asked: Question) -> Sequence[int]:
    return asked.blocks[: max(1, MOST_MATCHED_TOKENS // asked.block_tokens)]
