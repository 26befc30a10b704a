"""Pools of one model: which of them a tenant may use, and which one answers a request.

A model's pools are the one that bears its name and those that declare the model (`PoolEntry.model`). They differ in
accelerator, quantization, parallelism and price. A pool may be dedicated to tenants. Then requests of other tenants
never reach it: `usable` alone defines a tenant's pools, every resolved model holds only those, and `candidates` checks
again, with the snapshot in force, before it selects a replica.

A tenant's own model (`acme/wiki`) has only pools that are dedicated to its tenant, whatever the tenant's
`isolation.pools` is.

    isolation.pools   shared      the shared ones
                      preferred   its own, then the shared ones if those cannot answer
                      dedicated   its own; a model without such a pool does not exist for the tenant

If a tenant may use several pools, the first policy rule that holds decides (`place`). A tenant with its own pools
starts there; only a rule that names the tenant sends its requests to a shared pool first. Without a rule, the first
pool is used: own before shared, spot capacity last, the model's own name before others, those by name.

A rule on predicted time is compared with the result without it:

    place(rules) = target of the first rule that holds;   a rule with `min_predicted_ttft_ms` holds only if the
                   predicted time to first token in place(the rules after it) is at least that

Worked example (test_worked_example_of_the_prologue): rules batch to spot, and 800 ms to h200. A batch request goes to
spot. An interactive one that is predicted at 300 ms in the model's own pool stays there, one at 900 ms goes to h200.

Takeover: if the chosen pool is full or gone, the tenant's other pools of the model are next, in that order. Batch
requests wait instead of filling more expensive pools: they move only if their pool has no replica.

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

    own: tuple[PoolName, ...] = ()  # dedicated to the tenant
    shared: tuple[PoolName, ...] = ()

    @property
    def in_order(self) -> tuple[PoolName, ...]:
        return self.own + self.shared


@dataclass(frozen=True, slots=True)
class Placed:
    """Features of a request that decide on its pool."""

    tenant: TenantId
    tier: str
    service_class: ServiceClass
    prompt_tokens: int  # estimated


def model_of(entry: PoolEntry) -> PoolName:
    """Return the pool that bears the name of the model that `entry` serves, usually `entry` itself."""
    return PoolName(entry.model) if entry.model else entry.name


def usable(pools: Iterable[PoolEntry], tenant: TenantEntry, *, is_own: bool = False) -> Usable:
    """Return the tenant's pools of a model, in order of use and without prefill pools; no other code decides this.
    `is_own`: the model belongs to some tenant, so that it has no shared pools."""
    own: list[PoolName] = []
    shared: list[PoolName] = []
    for entry in sorted(pools, key=lambda entry: (entry.spot, bool(entry.model), entry.name)):
        if entry.role:
            continue  # a prefill pool answers no requests
        if not entry.dedicated_to:
            shared.append(entry.name)
        elif tenant.name in entry.dedicated_to:
            own.append(entry.name)
    uses_own, uses_shared = is_own or tenant.pools != "shared", not is_own and tenant.pools != "dedicated"
    return Usable(tuple(own) if uses_own else (), tuple(shared) if uses_shared else ())


def fitting(pools: Usable, entries: Mapping[PoolName, PoolEntry], prompt_tokens: int) -> Usable:
    """Return the pools whose context window is larger than the prompt, or all of them if there is none."""
    own, shared = (
        tuple(pool for pool in part if prompt_tokens < entries[pool].context_window_tokens)
        for part in (pools.own, pools.shared)
    )
    return Usable(own, shared) if own or shared else pools


def place(rules: Sequence[PlacementEntry], request: Placed, pools: Usable, predict: Predict | None = None) -> PoolName:
    """Return the pool to try first: the target of the first rule that holds and may be chosen, else the first pool;
    `pools` is not empty. Without `predict`, rules on predicted time do not hold."""
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
    """Return the pools of `others`, which serve the same model, that may take over from the request's pool, in order,
    without `been`; none after MAX_HOPS, or for a batch request of a saturated pool."""
    if len(been) > MAX_HOPS or (when == "saturated" and service_class == "batch"):
        return []
    return [pool for pool in others if pool not in been]


def takeover_pools(
    pool: PoolEntry, pools: Iterable[PoolEntry], tenants: Mapping[TenantId, TenantEntry]
) -> list[PoolName]:
    """Return the other pools of the model that receive the requests this pool cannot accept: the shared ones; none for
    a dedicated pool unless one of its tenants only prefers it."""
    shared = [other.name for other in pools if other.name != pool.name and not (other.dedicated_to or other.role)]
    owners = [tenants[owner] for owner in pool.dedicated_to if owner in tenants]
    return shared if not pool.dedicated_to or any(owner.pools == "preferred" for owner in owners) else []
