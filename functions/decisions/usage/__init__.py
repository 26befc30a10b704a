"""Money: what use of a pool cost, what its idle capacity did, and what a million tokens must bring."""
