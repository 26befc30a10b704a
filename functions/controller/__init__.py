"""Function: the controller. From YAML to what runs and what the data plane may do.

`gitops/` is the source that follows a branch; `compile`, `resolve`, `holding` and `publish` make the snapshot;
`changes/` tells two of them apart in words; `local/` is the target that runs the fleet as processes of one machine,
`kubernetes/` the one that writes KServe objects; `process` and `orders` put the local parts together. Imports fleet,
artifacts, decisions and api, never another role.
"""
