"""The registry's SQL store: models, versions, channels, rollouts, artifacts, keys, and the audit log of all changes.

It is SQLite, embedded in the state directory, or Postgres, shared by several registries. A write is one transaction
that first locks the single row of `state`, so writes run one after another. Each has a change number, and each audit
entry has one successor.

All calls block: the registry runs them in separate threads (`database.Database.run`). This package does not depend on
HTTP.
"""
