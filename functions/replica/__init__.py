"""The agent of one engine: adapters, heartbeats, health and drain.

    snapshot ──> reconciler ──> engine (load, unload)        monitor ──> engine (health, metrics, probe)
    gateways ──> peer app ──┘│                                  │
                             ├──> source, disk tier ──> the node's cache, S3
                             └────────────► status ◄────────────┘ ──> heartbeat_loop (its own thread) ──> bus

The parts share `status`, which holds only frozen values; `agent` builds them. Gateway, registry and controller are
reached over the network only.
"""
