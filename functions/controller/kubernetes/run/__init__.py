"""The controller process on Kubernetes: leadership, desired state, statuses, and the wait before the next reconcile.

Leadership: `election` decides, `lease` reads and writes, `elector` runs both. Sources: `informer`s over `object_store`s
feed `cr_source`; `git_remote` feeds the git source. Statements: `conditions` decides, `status_writer` writes. Pace:
`schedule` decides, `loop` obeys. `process` puts the parts together.
"""
