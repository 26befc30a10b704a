"""An installation on Kubernetes, looked at and made ready through its API server.

`access` speaks to the server; `secret_plan` and `secrets` make Secrets; `facts` reads what `platform_checks` and
`installation_checks` judge, and `doctor` tells it; `tunnel` leads to the registry, for `console` and every command that
asks it; `picture`, `status`, `logs` and `events` show what runs.
"""
