"""The controller process on Kubernetes: leadership, desired state, statuses, and the delay before the next reconcile.

Leadership: `election` decides, `lease` reads and writes, `elector` runs both. Desired state: `informer`s over
`object_store`s feed `cr_source` and `cr_reconciler`; a branch feeds `git_reconciler`. The leader also runs
`scaling_reconciler`, `version_reconciler`, `health_reconciler`, and `zone_reporter` and `branch_reporter`, which only
report to the registry. Statuses: `conditions` decides, `status_writer` writes. `loop` sets the pace. `process` joins
them.
"""
