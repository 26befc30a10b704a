"""Commands for the local fleet only, and what replaces each of them on a cluster."""

from collections.abc import Sequence
from types import MappingProxyType

from functions.cli.refused import CommandRefused

_CLIENTS = (
    "any OpenAI client, with the gateway's public name and a key: `shoal key create TENANT --context …` makes one"
)
INSTEAD = MappingProxyType(
    {
        "up": "`kubectl apply --server-side -k` of an overlay (docs/how-to/kubernetes.md)",
        "prepare": "`shoal base push` puts weights where pods fetch them (docs/how-to/add-a-base.md)",
        "down": "delete the objects first, then the overlay (docs/how-to/kubernetes.md, Remove it)",
        "env": _CLIENTS,
        "chat": _CLIENTS,
        "front": "DNS, or a balancer before the regions' gateways (docs/how-to/regions.md)",
        "clear-accelerator": "`kubectl annotate node NODE shoal.dev/accelerator-cleared=done`",
        "drill": "`make cluster-test` kills processes of an unused installation (docs/how-to/accept-a-cluster.md)",
    }
)


def refuse_local_commands(arguments: Sequence[str]) -> None:
    """Fail if `--context` is used with a command for the local fleet only."""
    command = next((each for each in arguments if not each.startswith("-")), "")
    if command in INSTEAD and any(each == "--context" or each.startswith("--context=") for each in arguments):
        raise CommandRefused(f"`shoal {command}` is for the fleet of this machine; for a cluster: {INSTEAD[command]}")
