"""The controller process on Kubernetes: who may write, what is wanted, what to say about it, and when to look again.

Leadership: `election` decides, `lease` reads and writes, `elector` runs both. Sources: `informer`s over `object_store`s
feed `cr_source`; `git_remote` feeds the git source. Statements: `conditions` decides, `status_writer` writes. Pace:
`schedule` decides, `loop` obeys. `process` puts the parts together.
"""
