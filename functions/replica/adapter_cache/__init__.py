"""Adapter cache of a region: one process between the agents and a store that is far away or expensive to read.

    agent ──> its node's disk ──> the region's cache ──> the store
                                  disk, bounded           each object is read once for all agents

objects       the objects on disk: by sha256, verified at every read, least recently used evicted first
read_through  one read of the store for all concurrent requests
app           `GET /objects/{kind}/{sha256}`, for holders of nodes' credential; `/readyz`, `/metrics`
runner        the process

The cache is optional: an agent whose cache is unreachable, slow or wrong reads the store
(`functions.artifacts.near_store`).
"""
