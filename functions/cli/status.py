"""`shoal status`: what the controller knows of processes, and what the registry heard from the replicas.

Either may be away; what is known is shown, and who is missing is named. Exit status 0 while everything is ready.
"""

import json
import ssl
import sys
from typing import Any

import httpx
import typer

from functions.cli.controller_process import controller_status
from functions.cli.place import Place, here
from functions.cli.status_tables import show
from functions.cli.terminal import make_console
from functions.controller.local import ledger as ledgers
from functions.controller.local.orphans import left_over

REGISTRY_TIMEOUT_S = 3.0


def status(*, as_json: bool) -> None:
    place = here()
    controller = controller_status(place)
    replicas, registry_problem = _replicas(place) if controller is not None else ([], "")
    seen: dict[str, Any] = {
        "ready": bool(controller and controller["ready"]),
        "state_dir": str(place.layout.root),
        "gateway": f"{place.gateway_url}/v1",
        "controller": controller,
        "without_controller": [] if controller is not None else _left_over(place),
        "replicas": replicas,
        "registry_problem": registry_problem,
    }
    if as_json:
        sys.stdout.write(json.dumps(seen, indent=2) + "\n")
    else:
        show(seen, make_console())
    if not seen["ready"]:
        raise typer.Exit(1)


def _replicas(place: Place) -> tuple[list[dict[str, Any]], str]:
    """As the registry tells them; else none, and why."""
    layout = place.layout
    try:
        token = layout.secret("internal-token").read_text().strip()
        verify = ssl.create_default_context(cafile=str(layout.ca_file))
        with httpx.Client(verify=verify, timeout=REGISTRY_TIMEOUT_S, trust_env=False) as client:
            response = client.get(f"{place.registry_url}/v1/fleet", headers={"authorization": f"Bearer {token}"})
        response.raise_for_status()
        replicas: list[dict[str, Any]] = response.json()["replicas"]
    except (httpx.HTTPError, OSError, ValueError, KeyError) as error:
        return [], f"the registry at {place.registry_url} does not answer: {error}"
    return replicas, ""


def _left_over(place: Place) -> list[dict[str, Any]]:
    """Processes that run although no controller does: they go on serving."""
    found = left_over(place.layout, ledgers.read(place.layout.ledger_file))
    return [{"name": process.name, "pid": process.pid} for process in found if process.leads]
