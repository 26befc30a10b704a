"""Money: cost of a pool's use, cost of its idle capacity, and the break-even price of a million tokens."""
