"""Notices of new snapshots: a short message on the bus beside the registry's long polls.

Polls are how snapshots travel; the word only wakes those whose poll has been lost on the way. Losing it, or being told
something untrue, costs one poll and changes nothing else.
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Protocol

import msgspec

from functions.api.snapshot import EPOCH_MAX
from functions.fleet.bus import BusUnavailable

ALL_POOLS = "*"
MAX_POOLS = 100  # named one by one; more are all
_MAX_BYTES = 16 * 1024

_log = logging.getLogger(__name__)


class SnapshotNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    epoch: Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
    pools: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_POOLS)] = (ALL_POOLS,)  # whose agents it concerns


class NoticeBus(Protocol):
    async def announce(self, notice: SnapshotNotice) -> None:
        """Tell everyone; BusUnavailable where that fails."""

    def notices(self) -> AsyncIterator[SnapshotNotice]:
        """What is announced from now on; ends with BusUnavailable when the connection is lost."""


def encode(notice: SnapshotNotice) -> bytes:
    return msgspec.json.encode(notice)


def decode(message: bytes) -> SnapshotNotice | None:
    """None for what is no news: whoever else writes to the bus cannot stop us."""
    if len(message) > _MAX_BYTES:
        return None
    try:
        return msgspec.json.decode(message, type=SnapshotNotice)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def follow_notices(bus: NoticeBus, heard: Callable[[SnapshotNotice], None]) -> None:
    """Pass on what the bus tells, until it is lost: BusUnavailable."""
    async for notice in bus.notices():
        heard(notice)


async def announce(bus: NoticeBus, notice: SnapshotNotice) -> None:
    """Tell everyone, or leave it at the polls."""
    try:
        await bus.announce(notice)
    except BusUnavailable as error:
        _log.info("snapshot epoch %d is not announced on the bus: %s", notice.epoch, error)
