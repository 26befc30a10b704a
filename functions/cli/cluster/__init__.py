"""An installation on Kubernetes, looked at and made ready through its API server.

`access` speaks to the server, `secret_plan` and `secrets` make Secrets, `facts`, `checks` and `doctor` say what is
missing.
"""
