"""Money of a pool over some time: what was paid, used, lost and idle, and the price of tokens at which it breaks even.

    idle accelerator-seconds   = paid - used by tenants - lost by the platform (failed and lost attempts)
    idle cost                  = what was paid - cost of what was used - cost of what was lost
    cost of 1 M tokens         = cost of what was used / tokens x 1 M         if every accelerator were always busy
    break-even price of 1 M    = what was paid / tokens x 1 M                 pays for the idle ones, too

Tokens are counted as endpoints charge: prompt and output together, cached ones included. Money is the operator's: what
one accelerator costs an hour, by the annotation `shoal.dev/accelerator-price-per-hour`; without it all costs are 0.

Worked example (test_a_pool_that_is_a_quarter_used): a replica of four accelerators at 2.50 each, one hour: 14,400
accelerator-seconds and 10.00 were paid. Tenants used 3,600 (2.50) for 5 M tokens, 360 (0.25) were lost: 10,440 and 7.25
were idle. A million tokens cost 0.50, and would have to bring 2.00.
"""

from dataclasses import dataclass

from functions.decisions.capacity.cost import MILLION


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """What a pool had, as far as it was seen."""

    minutes: int = 0  # that were seen
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
    used_ratio: float | None  # None: nothing was paid, as far as was seen
    paid_cost: float
    used_cost: float
    lost_cost: float
    idle_cost: float
    cost_per_million_tokens: float | None  # None: there were no tokens
    break_even_per_million_tokens: float | None


def pool_money(capacity: PoolCapacity, use: PoolUse) -> PoolMoney:
    """Idle is never below 0: minutes in which nobody saw the fleet were used and not paid, as far as is known."""
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
    """Of a million tokens; None where there were none."""
    return cost / tokens * MILLION if tokens > 0 else None
