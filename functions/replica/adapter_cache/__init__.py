"""Adapter cache of a region: one process between the agents and a store that is far away, or dear to read.

    agent ──> its node's disk ──> the region's cache ──> the store
                                  disk, bounded           once for each object, whoever asks

objects       what lies on the disk: by sha256, verified whenever it is read, the longest unused out first
read_through  one read of the store for all who ask at once
app           `GET /objects/{kind}/{sha256}`, for holders of nodes' credential; `/readyz`, `/metrics`
runner        the process

Nobody depends on it: an agent whose cache is away, slow or wrong reads the store (`functions.artifacts.near_store`).
"""
