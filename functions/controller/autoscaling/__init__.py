"""Autoscaling for real: gather signals, call `functions.decisions.autoscaling.decide`, and carry out its decision.

    signals       PoolSignals of each pool, from heartbeats and gateways' reports
    scaler        decision for each pool with an AutoscalingPolicy, and the scaler's state
    allocation    serving and warm replicas of a pool, given the number of each
    slots_in_use  accelerator slots in use on this machine
    clients       pool reports from the registry and desired sizes to it; roles to the replicas' agents
    local         the loop on one machine: processes follow the allocation
    kept          desired sizes and forecasts on disk, for the next controller

On Kubernetes the same signals and scaler are used, and `functions.controller.kubernetes.scaling` writes the number.
"""
