"""Entry: the requests of a workload that reach an admission queue of a side at all.

Who asks for a model that a side has not gets nothing there, which counts as refused. What is longer than the context
window of every pool that the tenant may use, or than the tenant's own cap on the fleet's own traffic, is a caller's
mistake (400), and counted by itself. An answer ends where the largest of those windows, or the tenant's cap of output,
does.

Neighbours: `traffic` has the requests; `settings` has the catalogue by which gateways place them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field

from functions.api.ids import PoolName
from functions.simulator.fleet.catalogue import SettingCatalogue
from functions.simulator.plan.planned_fleet import PlannedFleet
from functions.simulator.plan.settings import catalogue_of
from functions.simulator.workload.request import WorkloadRequest

_NO_CAP = 10**9
Where = tuple[str, int]  # pool and band


@dataclass(slots=True)
class Entry:
    """One side's; counts what does not enter."""

    fleet: PlannedFleet
    is_own: bool  # the traffic is the fleet's own: its tenants' caps hold
    no_pool: Counter[Where] = field(default_factory=Counter)
    too_long: Counter[Where] = field(default_factory=Counter)
    _catalogue: SettingCatalogue = field(init=False)

    def __post_init__(self) -> None:
        self._catalogue = catalogue_of(self.fleet, is_own=self.is_own)

    def entering(self, requests: Iterable[WorkloadRequest]) -> Iterator[WorkloadRequest]:
        for request in requests:
            window = self._window_tokens(request)
            if window is None:
                self.no_pool[request.pool or "", request.band] += 1
                continue
            context, output = self._caps(request)
            if request.prompt_tokens >= window or request.prompt_tokens > context:
                self.too_long[request.pool or "", request.band] += 1
                continue
            most = max(1, min(output, window - request.prompt_tokens))
            yield request if request.output_tokens <= most else _shortened(request, most)

    def place(self, request: WorkloadRequest) -> PoolName:
        """Where one that has entered goes first, as far as rules say so."""
        catalogue, pool = self._catalogue, PoolName(request.pool or "")
        model = catalogue.model(pool, request.adapter, request.tenant)
        return catalogue.placed_by_rules(model, request).pool if model is not None else pool

    def _window_tokens(self, request: WorkloadRequest) -> int | None:
        """None: there is no such model, or none that the tenant may use."""
        pools = self._catalogue.pools
        usable = self._catalogue.usable(request.tenant, PoolName(request.pool or "")).in_order
        return max((pools[pool].context_window_tokens for pool in usable), default=None)

    def _caps(self, request: WorkloadRequest) -> tuple[int, int]:
        """Tokens of prompt and of output that the tenant may have."""
        quota = self.fleet.tenants.get(request.tenant) if self.is_own else None
        if quota is None:
            return _NO_CAP, _NO_CAP
        context, output = quota.limits.max_context_tokens, quota.limits.max_output_tokens
        return _NO_CAP if context is None else context, _NO_CAP if output is None else output


def _shortened(request: WorkloadRequest, output_tokens: int) -> WorkloadRequest:
    """A copy: the other side gets the same requests."""
    same = copy(request)
    same.output_tokens = output_tokens
    return same
