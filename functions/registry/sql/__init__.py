"""The registry's truth in SQL: models, versions, channels, rollouts, artifacts, keys, and the audit of every change.

SQLite, embedded in the state directory, or Postgres, shared by several registries. Either way a write is one
transaction that first takes the lock on the one row of `state`, so that all writes stand in one line: each has a change
number, and the audit chain has one successor for each entry.

All calls block: the registry runs them in threads of its own (`database.Database.run`). Nothing here knows HTTP.
"""
