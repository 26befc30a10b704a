"""Scaling for real: signals gathered, `functions.decisions.autoscaling.decide` asked, what it says brought about.

    signals    what beats and gateways have told -> PoolSignals, one a pool
    scaler     asks the decision for each pool with an AutoscalingPolicy, and remembers
    roster     which replicas serve and which are warm, for a number of each
    teller     tells a replica's agent that it serves, or is warm, from now on
    local      the loop on one machine: processes follow the roster
    kept       what was asked for, on disk, for the controller that comes after

On Kubernetes the same signals and scaler are used, and `functions.controller.kubernetes.scaling` writes the number.
"""
