"""Confidence of a small model in its answer: the entropy of its tokens against a policy's threshold.

A token's entropy is computed from the log probabilities of its likeliest alternatives; the rest counts as one more:

    H = -sum(p x ln p) - rest x ln rest            nats; 0: a single possible continuation

Worked example (test_worked_example_of_the_prologue): alternatives of 0.5 and 0.25 leave 0.25 over, so
H = 0.5 x 0.693 + 0.25 x 1.386 + 0.25 x 1.386 = 1.04 nats.

The value of an answer is the mean over its first tokens (as many as the policy samples), or their 90th percentile. The
percentile reacts more to one doubtful word. Above the threshold, the request goes on to the larger model.
Thresholds are chosen from recorded values: `escalations` returns the share of past answers above each one.

Neighbours: `functions.gateway.routing.cascade` reads the log probabilities and holds the answer; `shoal simulate
cascade` prints the table.
"""

from collections.abc import Collection, Iterable, Sequence
from math import ceil, exp, log
from typing import Literal, NamedTuple

from functions.api.ids import PoolName
from functions.api.snapshot import CascadeEntry

Measure = Literal["mean", "p90"]
TOP_LOGPROBS = 5  # alternatives requested per token; vLLM returns up to 20


def token_entropy(logprobs: Iterable[float]) -> float:
    """Return the entropy of one token in nats, from the log probabilities of its likeliest alternatives."""
    masses = [exp(min(0.0, logprob)) for logprob in logprobs]
    total = sum(masses)
    if total > 1.0:  # rounded or invalid values: scale them down to a sum of 1
        masses = [mass / total for mass in masses]
        total = 1.0
    entropy = -sum(mass * log(mass) for mass in masses if mass > 0.0)
    rest = 1.0 - total
    return entropy - rest * log(rest) if rest > 1e-9 else entropy


def answer_entropy(entropies: Sequence[float], measure: Measure) -> float | None:
    """Return the entropy of an answer, the mean or the 90th percentile of its tokens' as `measure` says, or None if no
    token was measured."""
    if not entropies:
        return None
    if measure == "mean":
        return sum(entropies) / len(entropies)
    return sorted(entropies)[ceil(0.9 * len(entropies)) - 1]


def step_for(steps: Collection[CascadeEntry], pool: PoolName, tier: str) -> CascadeEntry | None:
    """Return the first cascade step (escalation to another pool) from the pool for this tier, or None."""
    found = (step for step in steps if step.source_pool == pool and (not step.tiers or tier in step.tiers))
    return next(found, None)


class Escalations(NamedTuple):
    """Number and share of the recorded answers that one threshold would have escalated."""

    threshold_nats: float
    escalated: int
    ratio: float


def escalations(entropies: Sequence[float], thresholds: Iterable[float]) -> list[Escalations]:
    """Return for each threshold the number and share of the recorded answers whose entropy is above it."""
    rows = []
    for threshold in thresholds:
        escalated = sum(one > threshold for one in entropies)
        rows.append(Escalations(threshold, escalated, escalated / len(entropies) if entropies else 0.0))
    return rows


def quantile_thresholds(entropies: Sequence[float], ratios: Iterable[float]) -> list[float]:
    """Return for each ratio the threshold in nats that would have escalated about that share of the answers; empty
    without answers."""
    ranked = sorted(entropies)
    if not ranked:
        return []
    return [ranked[min(len(ranked) - 1, max(0, ceil((1.0 - ratio) * len(ranked)) - 1))] for ratio in ratios]
