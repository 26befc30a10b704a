"""Kubernetes target of the controller: desired objects become server-side applies, in waves, behind one write guard.

Pure modules decide: `render`, `webhook_rules`, `ownership`, `pruning`, `health`. `api` sends the requests; `applier`
decides their order. `run/` is the process around them.
"""
