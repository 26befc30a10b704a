"""Wait until a newly registered version can be called, and measure how long that takes.

A version is in force when the registry's published snapshot contains it, and the channel points at it if one was to
move. On the fleet's own machine, its gateway must also use that snapshot or a later one. Gateways elsewhere follow the
registry within a second. An older registry does not report this state; then there is no wait.

The state comes from `functions.registry.model_routes`.
"""

import time
from collections.abc import Callable
from typing import Any

from functions.api.ids import ModelId
from functions.cli.context import CliContext
from functions.cli.fleet_wait import controller_status
from functions.cli.registry_client import Registry

TIMEOUT_S = 60.0  # promised limit for a new adapter; usually two seconds
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
    """Return the seconds until the version was in force; None after `timeout_s`, or if the registry does not report it.

    If `channel` is set, it must point at the version too. `status` returns the status of the local fleet's controller.
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
    """Return True if the registry's page of the model's versions reports the version in force, and `channel`, if set,
    at it."""
    if channel is not None and row["channels_in_force"].get(channel) != version:
        return False
    return any(each["name"] == version and each.get("in_force") for each in row["versions"])


def words(seconds: float | None) -> str:
    if seconds is None:
        return "not in force yet: the controller publishes it as soon as it can"
    return f"in force after {seconds:.1f} s"


def _gateway_has(registry: Registry, epoch: int, status: Callable[[CliContext], Any]) -> bool:
    """Return True if the local fleet's gateway uses the snapshot `epoch` or a later one. Also True if no controller
    answers, or if the registry belongs to another fleet."""
    if not registry.is_local:
        return True
    said = status(registry.context)
    return said is None or (said["snapshot"]["gateway_epoch"] or 0) >= epoch
