"""`shoal console`: the registry's page, of a cluster, at an address of this machine for as long as the command runs."""

import threading

from functions.cli.cluster.access import ClusterChoice
from functions.cli.cluster.tunnel import RegistryTunnel
from functions.cli.terminal import make_console


def console(choice: ClusterChoice) -> None:
    tunnel = RegistryTunnel(choice, with_token=False)
    secret = f"kubectl -n {choice.system} get secret shoal-internal-token -o jsonpath='{{.data.internal-token}}'"
    told = make_console()
    told.print(f"{tunnel.url}/console", soft_wrap=True)
    told.print(f"it asks for the operator's token: {secret} | base64 -d", soft_wrap=True)
    told.print("ctrl-c ends it")
    try:
        threading.Event().wait()
    finally:
        tunnel.close()
