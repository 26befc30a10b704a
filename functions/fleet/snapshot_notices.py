"""Notices of new snapshots: a short message on the bus, in addition to the registry's long polls.

Snapshots travel by polls. A notice only restarts polls that were lost on the way. A lost or wrong notice costs one
poll and changes nothing else.
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Protocol

import msgspec

from functions.api.snapshot import EPOCH_MAX
from functions.fleet.bus import BusUnavailable

ALL_POOLS = "*"
MAX_POOLS = 100  # pools named individually; if there are more, the notice is for all
_MAX_BYTES = 16 * 1024

_log = logging.getLogger(__name__)


class SnapshotNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    epoch: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
    # pools whose agents the notice is for
    pools: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_POOLS)] = (ALL_POOLS,)


class NoticeBus(Protocol):
    async def announce(self, notice: SnapshotNotice) -> None:
        """Send a notice to all listeners; BusUnavailable if that fails."""

    def notices(self) -> AsyncIterator[SnapshotNotice]:
        """Yield notices published from now on; ends with BusUnavailable when the connection is lost."""


def encode(notice: SnapshotNotice) -> bytes:
    return msgspec.json.encode(notice)


def decode(message: bytes) -> SnapshotNotice | None:
    """Decode a notice; None if it is none, so that other writers on the bus cannot stop the reader."""
    if len(message) > _MAX_BYTES:
        return None
    try:
        return msgspec.json.decode(message, type=SnapshotNotice)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def follow_notices(bus: NoticeBus, heard: Callable[[SnapshotNotice], None]) -> None:
    """Call `heard` with each notice from the bus until the bus is lost, which raises BusUnavailable."""
    async for notice in bus.notices():
        heard(notice)


async def announce(bus: NoticeBus, notice: SnapshotNotice) -> None:
    """Send a notice to all listeners. If the bus is unavailable, log it and rely on the polls."""
    try:
        await bus.announce(notice)
    except BusUnavailable as error:
        _log.info("snapshot epoch %d is not announced on the bus: %s", notice.epoch, error)
