"""The controller's report on its branch: sent when it changes, and again to a registry that lost it."""

from pathlib import Path
from typing import Any

import httpx
import msgspec

from functions.controller.branch_word import BranchReportSender, report_of
from functions.controller.snapshot.registry_client import RegistryClient
from functions.fleet.branch_report import BRANCH_MAX_BYTES, TELL_EVERY_S, BranchReport

REVISION: dict[str, Any] = {
    "branch": "main", "tip": "main@b", "tip_message": "worse", "desired": "main@a", "message": "good",
    "last_applied": "main@a", "applied_unix_s": 5.0, "suspended": {"reason": "why", "since_unix_s": 1.0}, "trouble": "",
    "problems": ["policies/x.yaml:3: no" + "!" * 5000] * 80, "problem_count": 80,
    "history": [{"revision": "main@b", "message": "worse", "result": "refused", "detail": "80 problems",
                 "first_unix_s": 1.0, "last_unix_s": 2.0, "duration_s": 0.0, "count": 1}],
}  # fmt: skip


def status(objects: int = 1) -> dict[str, Any]:
    unready = {"kind": "model", "state": "Stalled", "reason": "NotLoaded", "message": "m"}
    ready = unready | {"name": "good", "state": "Ready"}
    return {"revision": REVISION, "objects": [ready, *({**unready, "name": f"m{n}"} for n in range(objects))]}


def test_branch_report_lists_unready_objects_within_the_size_limit() -> None:
    report = report_of(status(objects=5000))
    assert (report.source, report.tip, report.applied, report.suspended) == ("main", "main@b", "main@a", "why")
    assert (report.problem_count, report.object_count, report.history[0].result) == (80, 5000, "refused")
    document = msgspec.json.encode(report)
    assert len(document) < BRANCH_MAX_BYTES
    assert msgspec.json.decode(document, type=BranchReport) == report


async def test_branch_report_is_sent_on_change_every_half_minute_and_after_an_outage() -> None:
    heard: list[bytes] = []
    is_away, now_s = False, 0.0

    def answer(request: httpx.Request) -> httpx.Response:
        heard.append(request.content)
        return httpx.Response(503 if is_away else 204)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:

        async def registry() -> RegistryClient:
            return RegistryClient(client, "http://registry", "token")

        word, first, second = (
            BranchReportSender(registry, lambda: now_s),
            BranchReport("main"),
            BranchReport("main", tip="main@a"),
        )
        assert [await word.send_report(first), await word.send_report(first), await word.send_report(second)] == [
            True,
            False,
            True,
        ]
        now_s = TELL_EVERY_S
        assert await word.send_report(second), "a registry that was started anew knows nothing"
        is_away = True
        assert not await word.send_report(first)
        is_away = False
        assert await word.send_report(first), "what could not be told is told later"
    assert len(heard) == 5


def test_branch_report_has_no_local_paths(tmp_path: Path) -> None:
    told = {**status(), "revision": {**REVISION, "repository": str(tmp_path)}}
    assert str(tmp_path).encode() not in msgspec.json.encode(report_of(told))
