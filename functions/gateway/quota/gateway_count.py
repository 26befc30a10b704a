"""Number of gateways that share limits, for a gateway that starts while the bus is away.

    the bus says it          in each round of leases, of the last 10 s (`leases`); nothing else counts while it answers
    the registry says it     in each answer to the snapshot's long poll (`SnapshotFollower.on_gateways`)
    the disk says it         what this gateway knew last, beside its cached snapshot: for neither of the two
    the settings say it      for a first start with nobody there

Nothing of it is configured by hand: gateways come and go with the load.
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
    """What was kept, else what is configured."""
    try:
        with file.open("rb") as opened:
            number = int(opened.read(_FILE_MAX_BYTES))
    except (OSError, ValueError):
        return configured
    return number if 1 <= number <= MAX_GATEWAYS else configured


async def keep(leases: QuotaLeases, file: Path) -> None:
    """Write down how many there are, whenever that has changed."""
    kept = last_known(file, 0)
    while True:
        if leases.gateways != kept:
            kept = leases.gateways
            try:
                await asyncio.to_thread(_write, file, kept)
            except OSError as error:
                _log.warning("the number of gateways could not be kept at %s: %s", file, error)
        await asyncio.sleep(_KEEP_INTERVAL_S)


def _write(file: Path, number: int) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(str(number))
    temporary.replace(file)
