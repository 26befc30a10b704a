"""Versions of a base on a cluster: each version under way is an InferenceService of its own beside the pool's.

`staged` says which bases this is for, and why not for others; `second_service` has the objects; `holding_back` keeps
what git says of the pool's own service from it for as long as it has replicas to lose; `counts_store` remembers what is
wanted in all; `plan` puts one pool's next step together. `run.version_reconciler` does it.
"""
