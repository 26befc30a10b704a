"""Function: the controller. From YAML to what runs and what the data plane may do.

`compile`, `resolve` and `publish` make the snapshot; `local/` is the target that runs the fleet as processes of one
machine; `process` puts both together. Imports fleet, artifacts, decisions and api, never another role.
"""
