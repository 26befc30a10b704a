"""Pools of one model: which of them a tenant may use, and which of these answers a request.

A model's pools are the one that bears its name and those that say that they serve it too (`PoolEntry.model`); they
differ in accelerator, quantization, parallelism, price. A pool may be dedicated to tenants; then no other's request
comes there, whatever its path: only `usable` says which pools there are for a tenant, every resolved model holds only
those, and `candidates` asks once more, of the snapshot in force, before it looks at a replica.

A model of a tenant's own (`acme/wiki`) has no pool but those that are dedicated to its tenant, whatever the tenant's
`isolation.pools` says.

    isolation.pools   shared      the shared ones
                      preferred   its own, then the shared ones where those cannot answer
                      dedicated   its own; a model without such a pool does not exist for the tenant

Where it may use several, the first rule of the policy that holds decides (`place`). A tenant that has pools of its own
starts in these; only a rule that names the tenant sends it to a shared one at once. Without a rule it is the first:
own before shared, spot capacity last, the model's own name before others, those by name.

A rule on predicted time compares with what would be done without it:

    place(rules) = target of the first rule that holds;   of one with `min_predicted_ttft_ms` only if
                   predicted time to first token in place(the rules after it) is at least that

Worked example (test_worked_example_of_the_prologue): rules batch to spot, and 800 ms to h200. A batch request goes to
spot. An interactive one that is predicted at 300 ms in the model's own pool stays there, one at 900 ms goes to h200.

Taking over: where the chosen pool is full or gone, the tenant's other pools of the model are next, in that order. Batch
waits rather than fill dearer pools: it moves only where its pool has no replica.

Neighbours: `functions.decisions.catalogue` holds the pools; `fallback` leads on to other models. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import FallbackWhen, PlacementEntry, PoolEntry, ServiceClass, TenantEntry
from functions.decisions.routing.fallback import MAX_HOPS

Predict = Callable[[PoolName], float | None]  # milliseconds to first token in a pool; None: no replica can take it


@dataclass(frozen=True, slots=True)
class Usable:
    """A tenant's pools of one model, in the order in which it uses them."""

    own: tuple[PoolName, ...] = ()  # dedicated to it
    shared: tuple[PoolName, ...] = ()

    @property
    def in_order(self) -> tuple[PoolName, ...]:
        return self.own + self.shared


@dataclass(frozen=True, slots=True)
class Placed:
    """What of a request decides on its pool."""

    tenant: TenantId
    tier: str
    service_class: ServiceClass
    prompt_tokens: int  # about


def model_of(entry: PoolEntry) -> PoolName:
    """The pool that bears the name of the model that this one serves; most often itself."""
    return PoolName(entry.model) if entry.model else entry.name


def usable(pools: Iterable[PoolEntry], tenant: TenantEntry, *, is_own: bool = False) -> Usable:
    """Which of a model's pools there are for the tenant: the one place that says so. `is_own`: it is a tenant's own
    model, this one's or another's."""
    own: list[PoolName] = []
    shared: list[PoolName] = []
    for entry in sorted(pools, key=lambda entry: (entry.spot, bool(entry.model), entry.name)):
        if entry.role:
            continue  # it computes prompts for the others, and answers nothing by itself
        if not entry.dedicated_to:
            shared.append(entry.name)
        elif tenant.name in entry.dedicated_to:
            own.append(entry.name)
    uses_own, uses_shared = is_own or tenant.pools != "shared", not is_own and tenant.pools != "dedicated"
    return Usable(tuple(own) if uses_own else (), tuple(shared) if uses_shared else ())


def fitting(pools: Usable, entries: Mapping[PoolName, PoolEntry], prompt_tokens: int) -> Usable:
    """Without those whose context window the prompt overflows; all, where it overflows every one."""
    own, shared = (
        tuple(pool for pool in part if prompt_tokens < entries[pool].context_window_tokens)
        for part in (pools.own, pools.shared)
    )
    return Usable(own, shared) if own or shared else pools


def place(rules: Sequence[PlacementEntry], request: Placed, pools: Usable, predict: Predict | None = None) -> PoolName:
    """The pool that answers first; `pools` has one at least. Without `predict`, rules on predicted time do not hold."""
    for at, rule in enumerate(rules):
        if not _holds(rule, request) or not _may_choose(rule, request, pools):
            continue
        if rule.min_predicted_ttft_ms is None:
            return rule.target_pool
        if predict is not None:
            otherwise = place(rules[at + 1 :], request, pools, predict)
            found_ms = predict(otherwise) if otherwise != rule.target_pool else 0.0
            late = (inf if found_ms is None else found_ms) >= rule.min_predicted_ttft_ms
            return rule.target_pool if late else otherwise
    return pools.in_order[0]


def _holds(rule: PlacementEntry, request: Placed) -> bool:
    if rule.classes and request.service_class not in rule.classes:
        return False
    if rule.tiers and request.tier not in rule.tiers:
        return False
    if rule.tenants and request.tenant not in rule.tenants:
        return False
    if rule.min_prompt_tokens is not None and request.prompt_tokens < rule.min_prompt_tokens:
        return False
    return rule.max_prompt_tokens is None or request.prompt_tokens <= rule.max_prompt_tokens


def _may_choose(rule: PlacementEntry, request: Placed, pools: Usable) -> bool:
    if rule.target_pool in pools.own:
        return True
    return rule.target_pool in pools.shared and (not pools.own or request.tenant in rule.tenants)


def takeovers(
    others: Iterable[PoolName], when: FallbackWhen, service_class: ServiceClass, been: Collection[PoolName]
) -> list[PoolName]:
    """The pools of the same model that answer where the request's own cannot, in order; `been` were tried already."""
    if len(been) > MAX_HOPS or (when == "saturated" and service_class == "batch"):
        return []
    return [pool for pool in others if pool not in been]


def takes_over(pool: PoolEntry, pools: Iterable[PoolEntry], tenants: Mapping[TenantId, TenantEntry]) -> list[PoolName]:
    """Of the model's `pools`, those that would get what this one cannot take, of one tenant or another."""
    shared = [other.name for other in pools if other.name != pool.name and not (other.dedicated_to or other.role)]
    owners = [tenants[owner] for owner in pool.dedicated_to if owner in tenants]
    return shared if not pool.dedicated_to or any(owner.pools == "preferred" for owner in owners) else []
