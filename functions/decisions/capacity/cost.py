"""Cost of a million tokens, and the load above which own accelerators are cheaper than an endpoint.

    cost of 1 M tokens    = price of the replicas an hour / (tokens a second x 3600) x 1 M
    break-even load       = price of the replicas an hour / (price of 1 M tokens elsewhere / 1 M) / 3600    tokens/s

Tokens are counted as endpoints charge: prompt and output together, at their mixed price. Worked example
(test_break_even): two replicas of one accelerator at 2.50 an hour make 9,000 tokens a second: 0.154 a million.
Elsewhere a million costs 0.60: own accelerators are cheaper from 2,315 tokens a second on, a quarter of their
capacity.
"""

MILLION = 1_000_000


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float | None:
    """Return the cost of a million tokens, in the unit of the price; None if no tokens are made."""
    return price_per_hour / (tokens_per_s * 3600) * MILLION if tokens_per_s > 0 else None


def break_even_tokens_per_s(price_per_hour: float, elsewhere_per_million: float) -> float:
    if elsewhere_per_million <= 0:
        raise ValueError("the price elsewhere must be above 0")
    return price_per_hour / elsewhere_per_million * MILLION / 3600
