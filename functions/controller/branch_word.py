"""Report to the registry on the followed branch, for the console: `PUT /v1/branch`.

    report now ──► changed, or last sent half a minute ago? ──► send it; else nothing

If the registry is away, the report is sent later: nothing waits for it and no decision depends on it. Neighbours:
`functions.fleet.branch_report` defines the report; each target makes its own.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from functions.controller.snapshot.registry_client import (
    EpochConflict,
    RegistryClient,
    RegistryRefused,
    RegistryUnavailable,
    RowMoved,
)
from functions.fleet.branch_report import (
    BRANCH_PATH,
    HISTORY_MAX,
    OBJECTS_MAX,
    PROBLEMS_MAX,
    TELL_EVERY_S,
    BranchReport,
    PastRevision,
    UnreadyObject,
    bounded_text,
)

LOOK_EVERY_S = 2.0

_log = logging.getLogger(__name__)


class BranchReportSender:
    """Sender of branch reports. Owned by one event loop."""

    def __init__(
        self, registry: Callable[[], Awaitable[RegistryClient]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._told: BranchReport | None = None
        self._told_s = float("-inf")

    async def send_report(self, report: BranchReport) -> bool:
        """Send the report to the registry if it changed or TELL_EVERY_S have passed since it was sent. Return True if
        it was sent now; False also if that failed."""
        now_s = self._clock()
        if report == self._told and now_s - self._told_s < TELL_EVERY_S:
            return False
        try:
            await (await self._registry()).send("PUT", BRANCH_PATH, content=msgspec.json.encode(report))
        except (RegistryUnavailable, RegistryRefused, EpochConflict, RowMoved, OSError) as error:
            _log.debug("the branch report is sent later: %s", error)
            return False
        self._told, self._told_s = report, now_s
        return True


def report_of(status: Mapping[str, Any]) -> BranchReport:
    """Make the report from the status of a controller on one machine (`functions.controller.status`)."""
    revision, objects = status["revision"], [each for each in status["objects"] if each["state"] != "Ready"]
    suspended = revision["suspended"]
    return BranchReport(
        source=bounded_text(revision["branch"]),
        tip=bounded_text(revision["tip"]),
        tip_message=bounded_text(revision["tip_message"]),
        desired=bounded_text(revision["desired"]),
        desired_message=bounded_text(revision["message"]),
        applied=bounded_text(revision["last_applied"]),
        applied_unix_s=revision["applied_unix_s"],
        suspended=bounded_text(suspended["reason"]) if suspended is not None else None,
        trouble=bounded_text(revision["trouble"]),
        problems=tuple(bounded_text(each) for each in revision["problems"][:PROBLEMS_MAX]),
        problem_count=revision["problem_count"],
        history=tuple(_past(each) for each in revision["history"][:HISTORY_MAX]),
        objects=unready(objects),
        object_count=len(objects),
    )


def unready(objects: Sequence[Mapping[str, Any]]) -> tuple[UnreadyObject, ...]:
    return tuple(
        UnreadyObject(*(bounded_text(each.get(name, "")) for name in UnreadyObject.__struct_fields__))
        for each in objects[:OBJECTS_MAX]
    )


def _past(each: Mapping[str, Any]) -> PastRevision:
    return PastRevision(
        revision=bounded_text(each["revision"]),
        result=bounded_text(each["result"]),
        message=bounded_text(each["message"]),
        detail=bounded_text(each["detail"]),
        at_unix_s=each["last_unix_s"],
        count=each["count"],
    )
