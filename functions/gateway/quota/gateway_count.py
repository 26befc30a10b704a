"""Number of gateways that share limits, also for a gateway that starts while the bus is unreachable.

Sources, the first available one counts:

    bus          in each round of leases, over the last 10 s (`leases`)
    registry     in each answer to the snapshot's long poll (`SnapshotFollower.on_gateways`)
    disk         the last number that this gateway knew, stored beside its cached snapshot
    settings     for a first start without any other source

The number is not configured manually, because gateways scale with the load.
"""

import asyncio
import logging
import os
from pathlib import Path

from functions.fleet.snapshots import MAX_GATEWAYS
from functions.gateway.quota.leases import QuotaLeases

_log = logging.getLogger(__name__)
_KEEP_INTERVAL_S = 5.0
_FILE_MAX_BYTES = 16


def last_known(file: Path, configured: int) -> int:
    """Return the number of gateways stored in `file`, or the configured one if there is no valid one."""
    try:
        with file.open("rb") as opened:
            number = int(opened.read(_FILE_MAX_BYTES))
    except (OSError, ValueError):
        return configured
    return number if 1 <= number <= MAX_GATEWAYS else configured


async def save_changes(leases: QuotaLeases, file: Path) -> None:
    """Store the number of gateways in `file` whenever it has changed, for ever. A failed write is only logged."""
    kept = last_known(file, 0)
    while True:
        if leases.gateways != kept:
            kept = leases.gateways
            try:
                await asyncio.to_thread(_write, file, kept)
            except OSError as error:
                _log.warning("the number of gateways could not be stored at %s: %s", file, error)
        await asyncio.sleep(_KEEP_INTERVAL_S)


def _write(file: Path, number: int) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(str(number))
    temporary.replace(file)
