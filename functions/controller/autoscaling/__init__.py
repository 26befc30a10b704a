"""Scaling for real: signals gathered, `functions.decisions.autoscaling.decide` called, its answer carried out.

    signals       PoolSignals of each pool, from heartbeats and gateways' reports
    scaler        decides for each pool with an AutoscalingPolicy, and keeps its state
    allocation    which replicas serve and which are warm, for a number of each
    slots_in_use  accelerator slots that are taken on this machine
    clients       pool reports and desired sizes at the registry, roles at the replicas' agents
    local         the loop on one machine: processes follow the allocation
    kept          desired sizes and forecasts on disk, for the controller that comes after

On Kubernetes the same signals and scaler are used, and `functions.controller.kubernetes.scaling` writes the number.
"""
