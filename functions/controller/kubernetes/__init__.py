"""The Kubernetes target: desired objects become server-side applies, in waves, behind one guard.

Pure parts decide (`render`, `webhook_rules`, `handover`, `compare`, `conflicts`, `pruning`, `health`); `api` is the
only file that talks to the API server, `applier` the only one that orders the talk. `run/` is the process around it.
"""
