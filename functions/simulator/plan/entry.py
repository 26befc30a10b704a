"""Select the requests of a workload that reach an admission queue of one side.

A request for a model that the side does not have counts as rejected. A prompt is a client error (400) and counts
separately if it exceeds the context window of every pool that its tenant may use; on the fleet's own traffic the
tenant's cap counts too. Answers are cut at the largest of these windows or the tenant's output cap. `traffic` has the
requests; `settings` has the catalogue with the placement rules.
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
    """Filter of one side, which counts the requests that do not enter."""

    fleet: PlannedFleet
    is_own: bool  # True if the traffic is the fleet's own, so that its tenants' caps apply
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
        """Return the pool to which the fleet's placement rules send the request on arrival; the pool that the request
        names if its tenant may use none."""
        catalogue, pool = self._catalogue, PoolName(request.pool or "")
        model = catalogue.model(pool, request.adapter, request.tenant)
        return catalogue.placed_by_rules(model, request).pool if model is not None else pool

    def _window_tokens(self, request: WorkloadRequest) -> int | None:
        """Return the largest context window in tokens of the model's pools that the tenant may use, or None if there is
        none."""
        pools = self._catalogue.pools
        usable = self._catalogue.usable(request.tenant, PoolName(request.pool or "")).in_order
        return max((pools[pool].context_window_tokens for pool in usable), default=None)

    def _caps(self, request: WorkloadRequest) -> tuple[int, int]:
        """Return the tenant's caps on prompt and output tokens; `_NO_CAP` if unset or if the traffic is not the fleet's
        own."""
        quota = self.fleet.tenants.get(request.tenant) if self.is_own else None
        if quota is None:
            return _NO_CAP, _NO_CAP
        context, output = quota.limits.max_context_tokens, quota.limits.max_output_tokens
        return _NO_CAP if context is None else context, _NO_CAP if output is None else output


def _shortened(request: WorkloadRequest, output_tokens: int) -> WorkloadRequest:
    """Return a copy with a shorter answer; the other side needs the original."""
    same = copy(request)
    same.output_tokens = output_tokens
    return same
