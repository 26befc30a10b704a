"""Spans of adapter loads: `shoal.adapter_load`, from planning to the end of the load.

Each load has its own trace, because one load may serve many requests or none. Its trace id is derived from replica,
adapter and time, so that a batch delivered twice is the same span. Neighbours: `reconciler` reports the end of a
load; `functions.telemetry.otlp_sender` sends the span.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import xxhash

from functions.api.ids import Digest, EngineName
from functions.replica.cold_calls import Tier
from functions.telemetry.otlp_sender import OtlpSender

NAME = "shoal.adapter_load"
LoadOutcome = Literal["loaded", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class LoadEnd:
    name: EngineName
    digest: Digest
    urgent: bool  # a gateway waits for it
    took_s: float
    outcome: LoadOutcome
    tier: Tier | None = None  # tier that it was loaded from
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoadSpans:
    sender: OtlpSender
    replica_id: str
    pool: str
    wall_clock: Callable[[], float] = time.time

    def ended(self, load: LoadEnd) -> None:
        end_s = self.wall_clock()
        told: dict[str, str | int | float] = {
            "shoal.replica": self.replica_id,
            "shoal.pool": self.pool,
            "shoal.adapter": load.name,
            "shoal.digest": load.digest,
            "shoal.urgent": "yes" if load.urgent else "no",
            "shoal.outcome": load.outcome,
        }
        if load.tier is not None:
            told["shoal.tier"] = load.tier
        if load.reason:
            told["error.message"] = load.reason
        ids = xxhash.xxh3_128_hexdigest(f"{self.replica_id} {load.name} {end_s!r}".encode())
        self.sender.span(NAME, (ids, ids[:16]), (end_s - load.took_s, end_s), told, failed=load.outcome != "loaded")
