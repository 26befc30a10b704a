"""Load test with 2,000 adapters on a few engines: cost of a cold adapter, and share of each tier in the loads.

    python -m loadtests.adapters                     8 simulated engines on 2 nodes, 2,000 adapters of 1 MB
    python -m loadtests.adapters --engine vllm --engine-python PATH --model-dir DIR --replicas 1

Gateway, agents, Valkey and SeaweedFS are real processes; the engines are simulated or real. Popularity follows Zipf's
law. Agents of one node share a disk cache: while it has room for all adapters, a node fetches each digest at most once.
"""
