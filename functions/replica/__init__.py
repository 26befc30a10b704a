"""The agent beside one engine: adapters, heartbeats, health, drain.

    snapshot ──> reconciler ──> engine (load, unload)        monitor ──> engine (health, metrics, probe)
    gateways ──> peer app ──┘│                                  │
                             ├──> source, disk tier ──> the node's cache, S3
                             └────────────► status ◄────────────┘ ──> heartbeat_loop (its own thread) ──> bus

The parts meet in `status`, which holds only frozen values; `agent` puts them together. Meets gateway, registry and
controller on the wire only.
"""
