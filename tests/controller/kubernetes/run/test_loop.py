"""The loop of a term, on scripted reconciles: the meaning of each error, and what ends a wait."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from functions.controller.kubernetes.errors import Conflict, KindMissing, LeadershipLost, Retryable, Terminal
from functions.controller.kubernetes.outcome import PassResult, ReconcileIntervals
from functions.controller.kubernetes.run.loop import Loop
from functions.controller.kubernetes.run.metrics import ControllerMetrics

NEVER_S = 1e6
PATIENT = ReconcileIntervals(resync_s=NEVER_S, poll_s=NEVER_S, slowest_poll_s=NEVER_S, contested_s=NEVER_S)
WAIT_S = 60.0


@dataclass
class Guard:
    """A term that lasts until the test ends it."""

    token: int = 1
    over: bool = False

    def check(self) -> None:
        if self.over:
            raise LeadershipLost("over")

    def remaining_s(self) -> float:
        return 0.0 if self.over else 10.0


@dataclass
class Api:
    """An API server that has only the record's annotations."""

    annotations: dict[str, str] = field(default_factory=dict)
    broken: bool = False

    def get(self, *_: Any) -> dict[str, Any]:
        if self.broken:
            raise Retryable("away")
        return {"metadata": {"annotations": dict(self.annotations)}, "data": {}}


class Scene:
    """A loop whose reconciles end as the test prescribes."""

    def __init__(self, *ends: PassResult | Exception, pace: ReconcileIntervals = PATIENT) -> None:
        self.passes = self.told = 0
        self.guard, self.api = Guard(), Api()
        self.metrics = ControllerMetrics()
        self._ends = list(ends)
        self.loop = Loop(
            self._reconcile,
            "shoal",
            self.metrics,
            pace=pace,
            settle_s=0.0,
            control_poll_s=0.02,
            on_suspended=self._count_suspension,
        )
        self.task: asyncio.Task[None] | None = None

    def _count_suspension(self) -> None:
        self.told += 1

    async def _reconcile(self, _guard: Any, _api: Any) -> PassResult:
        self.passes += 1
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if isinstance(end, Exception):
            raise end
        return end

    async def __aenter__(self) -> "Scene":
        lead = self.loop.lead(self.guard, self.api)  # type: ignore[arg-type]
        self.task = asyncio.get_running_loop().create_task(lead)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.task is not None
        self.task.cancel()
        with suppress(asyncio.CancelledError, LeadershipLost):
            await self.task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Retryable("away", after_s=3), "passing"),
        (Terminal("invalid"), "stalled"),
        (KindMissing("no CRD"), "contested"),
        (Conflict("flux holds it", ()), "contested"),
        (ValueError("nobody foresaw this"), "passing"),
    ],
)
async def test_each_error_has_its_result(error: Exception, kind: str) -> None:
    async with Scene(error) as scene:
        await scene.until(lambda: scene.loop.last.kind == kind)
        assert str(error) in scene.loop.last.message


async def test_news_end_an_unbounded_wait() -> None:
    async with Scene(Terminal("invalid"), PassResult("done")) as scene:
        await scene.until(lambda: scene.passes == 1)
        await asyncio.sleep(0.1)
        assert scene.passes == 1, "what cannot work is not tried again by itself"
        scene.loop.wake()
        await scene.until(lambda: scene.loop.last.kind == "done")


async def test_news_during_a_pass_cause_one_more_pass() -> None:
    async with Scene(PassResult("done")) as scene:
        for _ in range(50):
            scene.loop.wake()
        await scene.until(lambda: scene.passes >= 1)
        for _ in range(50):
            scene.loop.wake()
        await asyncio.sleep(0.3)
        assert 1 <= scene.passes <= 3


async def test_suspended_loop_waits_for_a_request_or_resume() -> None:
    scene = Scene(PassResult("done"))
    scene.api.annotations = {"shoal.dev/suspend": "true"}
    async with scene:
        scene.loop.wake()
        await scene.until(lambda: scene.loop.suspended)
        await asyncio.sleep(0.1)
        assert scene.passes == 0
        scene.api.annotations = {"shoal.dev/suspend": "false"}
        await scene.until(lambda: scene.passes == 1)


async def test_unreadable_orders_keep_their_last_state() -> None:
    scene = Scene(PassResult("done"))
    scene.api.annotations = {"shoal.dev/suspend": "true"}
    async with scene:
        await scene.until(lambda: scene.loop.suspended)
        scene.api.broken = True
        scene.loop.wake()
        await asyncio.sleep(0.1)
        assert scene.passes == 0


async def test_first_pass_waits_for_the_orders() -> None:
    """A leader takes over while the API server fails: its predecessor may have been suspended."""
    scene = Scene(PassResult("done"))
    scene.api.broken = True
    async with scene:
        await scene.until(lambda: "orders" in scene.loop.last.message)
        assert scene.passes == 0
        scene.api.annotations, scene.api.broken = {"shoal.dev/suspend": "true"}, False
        await scene.until(lambda: scene.loop.suspended)
        assert scene.passes == 0
        scene.api.annotations = {}
        await scene.until(lambda: scene.passes == 1)


async def test_suspended_loop_drops_pending_writes() -> None:
    scene = Scene(PassResult("done"))
    async with scene:
        await scene.until(lambda: scene.passes == 1)
        assert scene.told == 0
        scene.api.annotations = {"shoal.dev/suspend": "true"}
        await scene.until(lambda: scene.told == 1)


async def test_the_end_of_the_term_ends_the_loop() -> None:
    async with Scene(PassResult("done")) as scene:
        await scene.until(lambda: scene.passes == 1)
        scene.guard.over = True
        with pytest.raises(LeadershipLost):
            async with asyncio.timeout(WAIT_S):
                await scene.task  # type: ignore[misc]


async def test_failures_are_retried_with_backoff() -> None:
    quick = ReconcileIntervals(resync_s=NEVER_S, poll_s=0.01, slowest_poll_s=0.02)
    async with Scene(
        PassResult("waiting", "a load"), PassResult("waiting", "a load"), PassResult("done"), pace=quick
    ) as scene:
        await scene.until(lambda: scene.loop.last.kind == "done")
        assert scene.passes == 3


# -- logging


def logged(caplog: pytest.LogCaptureFixture, *looks: tuple[float, PassResult]) -> list[str]:
    loop = Scene(PassResult("done")).loop
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for now_s, result in looks:
            loop._log_result(result, now_s)
    return [record.getMessage() for record in caplog.records]


def held(epoch: int, *problems: str) -> PassResult:
    return PassResult("waiting", "; ".join((f"unchanged: the registry holds this content as epoch {epoch}", *problems)))


def test_repeated_problem_is_logged_once_in_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    half_an_hour = [(30.0 * number, held(7, "acme/faq: declared in git")) for number in range(60)]
    assert len(logged(caplog, *half_an_hour)) == 3
    others = [(30.0 * number, held(number, *("ab" if number % 2 else "ba"))) for number in range(10)]
    assert len(logged(caplog, *others)) == 1, "another order, another epoch"


def test_whatever_changes_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    a, b, done = held(7, "a"), held(7, "b"), PassResult("done", "published epoch 8: 2 tenants")
    assert len(logged(caplog, (0.0, a), (1.0, b), (2.0, a), (3.0, done), (4.0, a))) == 5


def test_idle_fleet_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert (
        len(logged(caplog, *((300.0 * number, PassResult("done", "unchanged: epoch 7")) for number in range(20)))) == 1
    )
    assert not logged(caplog, (0.0, PassResult("done")), (1000.0, PassResult("waiting")))
