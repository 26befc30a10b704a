"""Capacity: a model's demand and an accelerator's supply of memory, concurrency and speed; placement and price."""
