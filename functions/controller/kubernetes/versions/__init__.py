"""Versions of a base on a cluster: each version under way is an InferenceService of its own beside the pool's.

`staged` selects the bases, with the reasons why others are not. `second_service` builds the objects. `holding_back`
delays git's changes of the pool's own service while it has replicas to lose. `counts_store` stores the wanted totals.
`plan` decides one pool's next step. `run.version_reconciler` runs them.
"""
