"""`shoal status`: the running revision, objects, replicas and processes, as the controller reports them.

Without a controller it lists the processes that still serve. Exit status 0 if everything is ready, else 1.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

import typer

from functions.cli.context import CliContext, current_context
from functions.cli.fleet_wait import controller_status
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.cli.status_tables import show
from functions.cli.terminal import make_console
from functions.cli.top import poll_fleet
from functions.controller.local.adoption import fleet_processes
from functions.controller.local.instances import read_ledger

NO_MODELS: dict[str, Any] = {"adapters": (), "rollouts": [], "pools": {}, "base_versions": {}}


def status(*, as_json: bool) -> None:
    context = current_context(clones=True)
    controller = controller_status(context)
    seen: dict[str, Any] = {
        "ready": bool(controller and controller["ready"]),
        "state_dir": str(context.layout.root),
        "gateway": f"{context.gateway_url}/v1",
        "prometheus": _prometheus(controller),
        "controller": controller,
        "without_controller": [] if controller is not None else _left_over(context),
        "replicas": controller["replicas"] if controller is not None else [],
        **(_models(context) if controller is not None else NO_MODELS),
    }
    if as_json:
        told = {**seen, "adapters": [asdict(each) for each in seen["adapters"]]}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        show(seen, make_console())
    if not seen["ready"]:
        raise typer.Exit(1)


def _prometheus(controller: dict[str, Any] | None) -> str | None:
    """Return the address of the fleet's Prometheus, or None."""
    processes = controller["processes"] if controller is not None else []
    return next((f"http://127.0.0.1:{each['port']}" for each in processes if each["role"] == "prometheus"), None)


def _models(context: CliContext) -> dict[str, Any]:
    """Return adapters by tier, rollouts, pools and the names of base versions by digest; NO_MODELS if the registry does
    not answer."""
    try:
        with Registry(context) as registry:
            models = list(registry.pages("/v1/models"))
            look = poll_fleet(registry, models)
    except CommandRefused:
        return NO_MODELS
    versions = {
        str(version["digest"]): str(version["name"])
        for model in models
        if model["type"] == "base"
        for version in model["versions"]
    }
    return {"adapters": look.tiers, "rollouts": look.rollouts, "pools": look.pools, "base_versions": versions}


def _left_over(context: CliContext) -> list[dict[str, Any]]:
    """Return the processes that still serve without a controller."""
    found = fleet_processes(context.layout, read_ledger(context.layout.ledger_file))
    return [{"name": process.name, "pid": process.pid} for process in found if process.leads]
