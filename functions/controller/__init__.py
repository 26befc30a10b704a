"""The controller: from YAML to running processes and to the snapshot of the data plane.

`gitops/` follows a branch; `snapshot/` compiles, resolves, holds back and publishes the snapshot; `gitops/changes/`
describes the differences between two of them. `local/` runs the fleet as processes of one machine, and `kubernetes/`
writes KServe objects. `process` and `orders` combine the local parts. Imports fleet, artifacts, decisions and api,
never another role.
"""
