"""The controller: turns YAML into running replicas and into the snapshot of the data plane.

    gitops/      follows a branch; `gitops/changes/` describes the difference of two configurations
    snapshot/    compiles, resolves and publishes the snapshot
    local/       target: runs the fleet as processes of one machine, assembled by `process` and `orders`
    kubernetes/  target: writes KServe objects

Imports fleet, artifacts, decisions and api, never another role.
"""
