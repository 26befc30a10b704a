"""Which replica and which version: router, fallback, cascade, adapter loads, rollouts."""
