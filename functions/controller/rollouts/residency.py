"""Where a rollout's two versions are, from what the pool's replicas say. Pure."""

from collections.abc import Iterable

from functions.api.ids import engine_name
from functions.decisions.rollout.evaluation import Residency
from functions.decisions.rollout.lifecycle import Rollout
from functions.fleet.heartbeat import Heartbeat


def residency_of(rollout: Rollout, beats: Iterable[Heartbeat]) -> Residency:
    control = engine_name(rollout.model, rollout.from_digest)
    candidate = engine_name(rollout.model, rollout.to_digest)
    ready = [beat for beat in beats if beat.phase == "ready" and beat.pool == rollout.pool]
    refusals = [
        beat.adapter_failures[candidate]
        for beat in ready
        if candidate in beat.adapter_failures and candidate not in beat.adapters
    ]
    return Residency(
        ready=len(ready),
        with_control=sum(control in beat.adapters for beat in ready),
        with_candidate=sum(candidate in beat.adapters for beat in ready),
        with_both=sum(control in beat.adapters and candidate in beat.adapters for beat in ready),
        refusing=len(refusals),
        refusal=next(iter(refusals), ""),
    )
