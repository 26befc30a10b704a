"""Commands for an installation on Kubernetes, through its API server.

`access` calls the server. `secret_plan` and `secrets` create Secrets. `facts` reads what `platform_checks`,
`installation_checks` and `supply_checks` evaluate, and `doctor` prints their findings. `tunnel` connects to the
registry and the trace store. `picture`, `status` and `logs` show what runs; `drain`, `restart` and `orders` change it.
"""
