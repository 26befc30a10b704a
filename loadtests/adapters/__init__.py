"""Two thousand adapters over a few engines: what a cold model costs, and which tier answers how often.

    python -m loadtests.adapters                     8 simulated engines on 2 nodes, 2,000 adapters of 1 MB
    python -m loadtests.adapters --engine vllm --engine-python PATH --model-dir DIR --replicas 1

Real parts: gateway, agents, Valkey, SeaweedFS; engines simulated or real. Popularity is Zipf's. Agents of one node
share a disk cache, so that a digest may be fetched once a node and no more, while the cache holds them all.
"""
