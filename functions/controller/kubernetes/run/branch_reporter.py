"""Report to the registry what the leading controller follows: git's branch, or the cluster's own objects.

The console shows the report (`functions.controller.branch_word`); `shoal status --context` reads the record.
"""

import asyncio
from collections.abc import Callable

import msgspec

from functions.controller.branch_word import LOOK_EVERY_S, BranchReportSender
from functions.controller.gitops.source import Observed
from functions.controller.kubernetes.inventory import InventoryRecord
from functions.controller.kubernetes.run.cr_source import ObservedResources
from functions.controller.snapshot.registry_client import RegistryClient
from functions.fleet.branch_report import HISTORY_MAX, PROBLEMS_MAX, BranchReport, PastRevision, bounded_text


class BranchReporter:
    """Reporter of one term, owned by one event loop."""

    def __init__(
        self,
        registry: RegistryClient,
        report: Callable[[], BranchReport],
        is_suspended: Callable[[], bool],
        announce: Callable[[BranchReport], None] = lambda report: None,
    ) -> None:
        """`announce` receives each report, whether it is sent to the registry or not."""
        self._client = registry
        self._announce = announce
        self._report = report
        self._is_suspended = is_suspended

    async def run(self) -> None:
        word = BranchReportSender(self._registry)
        while True:
            report = self._report()
            self._announce(report)
            await word.send_report(msgspec.structs.replace(report, suspended="") if self._is_suspended() else report)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _registry(self) -> RegistryClient:
        return self._client


def report_of_git(
    branch: str, observed: Observed | None, desired: str, trouble: str, record: InventoryRecord
) -> BranchReport:
    """Build the report of a branch. `desired` is the wanted revision or empty; `trouble` is why it cannot be read."""
    problems = tuple(str(problem) for problem in observed.problems) if observed is not None else ()
    applied = next((each for each in record.history if each.revision == record.last_applied), None)
    return BranchReport(
        source=bounded_text(branch),
        tip=bounded_text(f"{branch}@{observed.commit}") if observed is not None and observed.commit else "",
        tip_message=bounded_text(observed.message) if observed is not None else "",
        desired=bounded_text(desired),
        desired_message=bounded_text(observed.message)
        if observed is not None and desired == f"{branch}@{observed.commit}"
        else "",
        applied=bounded_text(record.last_applied),
        applied_unix_s=applied.ended_unix_s if applied is not None else 0.0,
        trouble=bounded_text(trouble),
        problems=tuple(map(bounded_text, problems[:PROBLEMS_MAX])),
        problem_count=len(problems),
        history=tuple(
            PastRevision(bounded_text(each.revision), each.result, "", bounded_text(each.message), each.ended_unix_s)
            for each in record.history[:HISTORY_MAX]
        ),
    )


def report_of_objects(looked: ObservedResources | None, published: str) -> BranchReport:
    """Build the report of the cluster's objects. `published` is the revision in force."""
    problems = looked.problems if looked is not None else ()
    waiting = "; ".join(looked.waiting) if looked is not None else "the cluster's objects were not read yet"
    return BranchReport(
        source="kubernetes",
        tip=bounded_text(looked.revision) if looked is not None else "",
        desired=bounded_text(looked.revision) if looked is not None else "",
        applied=bounded_text(published),
        trouble=bounded_text(waiting),
        problems=tuple(map(bounded_text, problems[:PROBLEMS_MAX])),
        problem_count=len(problems),
    )
