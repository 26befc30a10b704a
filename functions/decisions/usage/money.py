"""Money of a pool over a period: paid, used, lost and idle cost, and the break-even price of its tokens.

    idle accelerator-seconds   = paid - used by tenants - lost by the platform (failed and lost attempts)
    idle cost                  = paid cost - used cost - lost cost
    cost of 1 M tokens         = used cost / tokens x 1 M         if every accelerator were always busy
    break-even price of 1 M    = paid cost / tokens x 1 M         pays for the idle ones, too

Tokens are counted as endpoints charge: prompt and output together, including cached ones. The operator sets the price
of an accelerator-hour by the annotation `shoal.dev/accelerator-price-per-hour`; without it all costs are 0.

Worked example (test_money_of_a_quarter_used_pool): a replica of four accelerators at 2.50 each, one hour: 14,400
accelerator-seconds and 10.00 were paid. Tenants used 3,600 (2.50) for 5 M tokens, 360 (0.25) were lost: 10,440 and 7.25
were idle. A million tokens cost 0.50, and would have to bring 2.00.
"""

from dataclasses import dataclass

from functions.decisions.capacity.cost import MILLION


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """Capacity of a pool in the minutes in which it was observed."""

    minutes: int = 0  # observed
    replica_seconds: float = 0.0
    accelerator_seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolUse:
    tokens: int = 0
    accelerator_seconds: float = 0.0
    cost: float = 0.0
    lost_accelerator_seconds: float = 0.0
    lost_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolMoney:
    paid_accelerator_seconds: float
    used_accelerator_seconds: float
    lost_accelerator_seconds: float
    idle_accelerator_seconds: float
    used_ratio: float | None  # None means that no capacity was observed
    paid_cost: float
    used_cost: float
    lost_cost: float
    idle_cost: float
    cost_per_million_tokens: float | None  # None means that there were no tokens
    break_even_per_million_tokens: float | None


def pool_money(capacity: PoolCapacity, use: PoolUse) -> PoolMoney:
    """Return what a pool's capacity cost and what became of it: used, lost or idle. Idle values are at least 0: use in
    unobserved minutes has no observed capacity."""
    paid_s = capacity.accelerator_seconds
    return PoolMoney(
        paid_accelerator_seconds=paid_s,
        used_accelerator_seconds=use.accelerator_seconds,
        lost_accelerator_seconds=use.lost_accelerator_seconds,
        idle_accelerator_seconds=max(0.0, paid_s - use.accelerator_seconds - use.lost_accelerator_seconds),
        used_ratio=use.accelerator_seconds / paid_s if paid_s > 0.0 else None,
        paid_cost=capacity.cost,
        used_cost=use.cost,
        lost_cost=use.lost_cost,
        idle_cost=max(0.0, capacity.cost - use.cost - use.lost_cost),
        cost_per_million_tokens=per_million(use.cost, use.tokens),
        break_even_per_million_tokens=per_million(capacity.cost, use.tokens),
    )


def per_million(cost: float, tokens: int) -> float | None:
    """Return the cost of a million tokens, or None if there were no tokens."""
    return cost / tokens * MILLION if tokens > 0 else None
