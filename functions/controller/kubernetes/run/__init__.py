"""The controller process on Kubernetes: leadership, desired state, statuses, and the wait before the next reconcile.

Leadership: `election` decides, `lease` reads and writes, `elector` runs both. What is desired: `informer`s over
`object_store`s feed `cr_source` and `cr_reconciler`; a branch feeds `git_reconciler`. Beside it, in the leader's term:
`scaling_reconciler`, `version_reconciler`, `health_reconciler`, and `zone_reporter` and `branch_reporter`, which only
tell the registry. Statements: `conditions` decides, `status_writer` writes. `loop` keeps the pace. `process` puts the
parts together.
"""
