"""Waiting until a version that was just registered can be called: seconds, and said how many.

    the registry says that its published snapshot has it (`in_force`, and the channel where one was to move)
    on the fleet's own machine also: its gateway uses that snapshot or a later one

Gateways elsewhere follow the registry within a second. An older registry does not say; then nobody waits.

Neighbours: `adapter_push` asks; `functions.registry.model_routes` says.
"""

import time
from collections.abc import Callable
from typing import Any

from functions.api.ids import ModelId
from functions.cli.context import CliContext
from functions.cli.fleet_wait import controller_status
from functions.cli.registry_client import Registry

TIMEOUT_S = 60.0  # what a new adapter may take by what is promised; usually two seconds
_POLL_S = 0.25


def wait_in_force(
    registry: Registry,
    model_id: ModelId,
    version: str,
    channel: str | None,
    *,
    timeout_s: float = TIMEOUT_S,
    status: Callable[[CliContext], Any] = controller_status,
) -> float | None:
    """Seconds until it was; None: not within `timeout_s`, or the registry does not say.

    `channel`: it has to name this version, too. `status`: what the controller of this machine's fleet says.
    """
    began_s = time.monotonic()
    while True:
        row = registry.model(model_id)
        if row is None or row["channels_in_force"] is None:
            return None
        if is_in_force(row, version, channel) and _gateway_has(registry, row["snapshot_epoch"], status):
            return time.monotonic() - began_s
        if time.monotonic() - began_s > timeout_s:
            return None
        time.sleep(_POLL_S)


def is_in_force(row: dict[str, Any], version: str, channel: str | None) -> bool:
    """Pure: by the registry's page of the model's versions."""
    if channel is not None and row["channels_in_force"].get(channel) != version:
        return False
    return any(each["name"] == version and each.get("in_force") for each in row["versions"])


def words(seconds: float | None) -> str:
    """For people."""
    if seconds is None:
        return "not in force yet: the controller publishes it as soon as it can"
    return f"in force after {seconds:.1f} s"


def _gateway_has(registry: Registry, epoch: int, status: Callable[[CliContext], Any]) -> bool:
    """Whether the gateway of this machine's fleet uses the snapshot; of another one nothing is known here."""
    if not registry.is_local:
        return True
    said = status(registry.context)
    return said is None or (said["snapshot"]["gateway_epoch"] or 0) >= epoch
