"""Comparison of one pool with a prefill and a decode pool for the same load. Pure.

    cost             = replicas x accelerators x price an hour if prices are known, else accelerators
    pays             one pool cannot keep the promise, or costs more
    costs the same   equal cost, shorter gaps between tokens
    does not pay     otherwise

`capacity_apart` fills it, `capacity_tables` prints it.
"""

from dataclasses import dataclass

from functions.simulator.prefill_sizing import Apart
from functions.simulator.replicas_needed import Needed


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillComparison:
    pool: str
    reads: str  # name of the prefill pool
    apart: Apart | None  # None means that no sizes are enough; `trouble` says why
    one: Needed | None  # None means that no number of replicas is enough
    cost: float | None = None
    one_cost: float | None = None
    unit: str = "accelerators"  # unit of both costs
    trouble: str = ""

    @property
    def pays(self) -> bool:
        return self.cost is not None and (self.one_cost is None or self.cost < self.one_cost)

    @property
    def words(self) -> str:
        if self.apart is None or self.cost is None:
            return f"prefill apart does not pay: {self.trouble}"
        sizes = f"{self.apart.reading} of {self.reads} and {self.apart.writing} of {self.pool}"
        if self.one is None or self.one_cost is None:
            return f"prefill apart pays: {sizes} keep the promise, which one pool cannot"
        costs = f"{sizes}, {self.cost:g} {self.unit}; one pool of {self.one.replicas}, {self.one_cost:g}"
        if self.pays:
            return f"prefill apart pays: {costs}"
        gap_ms, one_gap_ms = self.apart.itl_p99_ms, self.one.itl_p99_ms
        if self.cost == self.one_cost and gap_ms is not None and one_gap_ms is not None and gap_ms < one_gap_ms:
            return f"prefill apart costs the same, with gaps of {gap_ms:,.0f} ms in place of {one_gap_ms:,.0f}: {costs}"
        return f"prefill apart does not pay: {costs}"
