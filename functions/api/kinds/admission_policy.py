"""`AdmissionPolicy`: capacity guaranteed to each service class of a pool, and the limit of its queue.

Shares are of the pool's capacity; other bands borrow what a band does not use. A pool's policy is found as for
`RoutingPolicy`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from functions.api.kinds.base import Finding, ShoalObject, Strict
from functions.api.kinds.quantities import Duration, PoolPattern, Positive, Ratio, duration_ms
from functions.api.snapshot import ServiceClass

_ROUNDING = 1e-9  # 0.6 + 0.3 + 0.1 is slightly above 1 in binary


class Band(Strict):
    """Guarantees for one service class."""

    share: Ratio
    """Share of the pool's capacity, from 0 to 1; all bands together at most 1."""
    ttft_slo: Duration | None = None
    """Target for the time to first token of the class; the interactive band's is the `slo` of scaling rules."""

    max_wait: Duration | None = None
    """Longest wait for capacity before a request is rejected. Default: half of ttftSlo; without ttftSlo 10 s, 30 s
    and 10 min for interactive, near-real-time and batch."""

    @property
    def max_wait_ms(self) -> int | None:
        return duration_ms(self.max_wait) if self.max_wait is not None else None

    @property
    def ttft_slo_ms(self) -> int | None:
        return duration_ms(self.ttft_slo) if self.ttft_slo is not None else None


class Bands(Strict):
    """Guarantees by service class. A class that is left out has no guaranteed share and uses what the others leave."""

    interactive: Band | None = None
    near_real_time: Band | None = Field(default=None, alias="near-real-time")
    batch: Band | None = None

    def written(self) -> tuple[tuple[ServiceClass, Band], ...]:
        """Return the bands that the policy declares with their classes, most urgent class first."""
        bands: tuple[tuple[ServiceClass, Band | None], ...] = (
            ("interactive", self.interactive),
            ("near-real-time", self.near_real_time),
            ("batch", self.batch),
        )
        return tuple((name, band) for name, band in bands if band is not None)


class AdmissionPolicySpec(Strict):
    pools: Annotated[tuple[PoolPattern, ...], Field(min_length=1, max_length=1000)] = ("*",)
    """Names of pools, or a prefix of names with one * at the end. The pattern that fits a pool best applies."""
    bands: Bands
    max_queued_tokens: Positive = 2_000_000
    """Tokens that may wait in front of a pool; requests beyond are rejected immediately instead of being answered
    too late."""


class AdmissionPolicy(ShoalObject):
    """Capacity guaranteed to each service class of a pool, and the limit of its queue."""

    kind: Literal["AdmissionPolicy"]
    spec: AdmissionPolicySpec

    def findings(self) -> Iterator[Finding]:
        bands = self.spec.bands.written()
        path = ("spec", "bands")
        if not bands:
            yield Finding(path, "found no band; allowed: at least one of interactive, near-real-time, batch")
        shares = sum(band.share for _, band in bands)
        if shares > 1 + _ROUNDING:
            yield Finding(path, f"the shares add up to {shares:g}; allowed: at most 1, which is the whole pool")
