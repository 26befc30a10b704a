"""The replayed traces: arrival times, models, and prompts of numbered blocks that requests may share.

    mooncake   the conversation trace of FAST'25: its arrival times, lengths, and the numbers of its 512-token blocks
    lora       chats of a few hundred tokens to 200 adapters by Zipf's law, in sessions of several turns

Equal numbers mean equal text, so caches hit as in the original system. The trace's times have steps of 3 s; each
request gets a random time within its step.
"""

import gzip
import json
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

BLOCK_TOKENS = 512  # tokens per block of the trace
_STEP_S = 3.0
MOONCAKE = Path("mooncake_fast25/conversation_trace.jsonl.gz")
ADAPTERS = 200


@dataclass(frozen=True, slots=True)
class TraceRequest:
    at_s: float  # seconds from the trace's beginning
    blocks: tuple[int, ...]  # the prompt, as whole blocks
    output_tokens: int
    adapter: int | None = None  # adapter number; None means the base model
    session: str | None = None


MOONCAKE_PER_S = 12_031 / 3_537.0


def mooncake(folder: Path, seed: int = 1) -> list[TraceRequest]:
    """Return all 12,031 requests of the trace's 3,537 s."""
    rng = random.Random(seed)
    with gzip.open(folder / MOONCAKE, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    found = [
        TraceRequest(row["timestamp"] / 1000 + rng.random() * _STEP_S, tuple(row["hash_ids"]), row["output_length"])
        for row in rows
    ]
    return sorted(found, key=lambda asked: asked.at_s)


def lora(seconds: float, rate_per_s: float, seed: int = 1) -> list[TraceRequest]:
    """Return sessions of 1 to 8 turns: the adapter's system prompt of 2 blocks, and one more block each turn."""
    rng = random.Random(seed)
    cumulative = list(accumulate(1.0 / (rank + 1) for rank in range(ADAPTERS)))
    found = []
    for number, began_s in enumerate(_arrivals(rng, rate_per_s / _MEAN_TURNS, seconds)):
        at_s = began_s
        adapter = bisect_left(cumulative, rng.random() * cumulative[-1])
        blocks = [2 * adapter, 2 * adapter + 1]
        for turn in range(rng.randint(1, _MOST_TURNS)):
            blocks = [*blocks, 1_000_000 + number * _MOST_TURNS + turn]
            found.append(TraceRequest(at_s, tuple(blocks), rng.randint(64, 400), adapter, f"session-{number}"))
            at_s += rng.expovariate(1 / _THINKING_S)
    return sorted((asked for asked in found if asked.at_s < seconds), key=lambda asked: asked.at_s)


_MOST_TURNS = 8
_MEAN_TURNS = (1 + _MOST_TURNS) / 2
_THINKING_S = 10.0


def _arrivals(rng: random.Random, rate_per_s: float, seconds: float) -> Iterator[float]:
    at_s = rng.expovariate(rate_per_s)
    while at_s < seconds:
        yield at_s
        at_s += rng.expovariate(rate_per_s)
