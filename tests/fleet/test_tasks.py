"""Supervised tasks log their failures, restart, and end when cancelled."""

import asyncio
import inspect
import logging

import pytest
from botocore.exceptions import ClientError

from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import unavailable
from functions.fleet.tasks import Supervised


async def test_a_task_that_fails_is_logged_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0
    third = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            third.set()
        raise RuntimeError(f"run {runs}")

    tasks = Supervised(restart_after_s=0.001)
    tasks.forever("worker", work)
    await asyncio.wait_for(third.wait(), 30)
    await tasks.close()
    assert "task worker failed" in caplog.text
    assert "RuntimeError: run 1" in caplog.text


async def test_a_source_that_may_be_away_costs_one_line_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    again = asyncio.Event()

    async def work() -> None:
        if caplog.records:
            again.set()
        raise ConnectionError("away")

    tasks = Supervised(restart_after_s=0.001)
    tasks.forever("bus", work, expected=(ConnectionError,))
    await asyncio.wait_for(again.wait(), 30)
    await tasks.close()
    assert all(record.levelno == logging.WARNING and record.exc_info is None for record in caplog.records)
    assert "bus: away" in caplog.text


async def test_varying_store_errors_are_logged_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    """Object names differ in each try: an hour of chaos would log 825 lines."""
    tries = 0
    enough = asyncio.Event()

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries == 20:
            enough.set()
        code = "InternalError" if tries % 2 else "SlowDown"
        raise unavailable(f"shoal-tried/{tries}", ClientError({"Error": {"Code": code}}, "PutObject"))

    tasks = Supervised(restart_after_s=0.001)
    tasks.forever("batches", work, expected=(StoreUnavailable,))
    await asyncio.wait_for(enough.wait(), 30)
    await tasks.close()
    assert len(caplog.records) == 2
    assert "shoal-tried/1" in caplog.messages[0] and "SlowDown" in caplog.messages[1]


async def test_a_task_that_returns_is_started_again() -> None:
    runs = 0
    second = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            second.set()

    tasks = Supervised(restart_after_s=0.001)
    tasks.forever("worker", work)
    await asyncio.wait_for(second.wait(), 30)
    await tasks.close()


async def test_one_time_work_logs_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise RuntimeError("no")

    tasks = Supervised()
    tasks.once("chore", work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "task chore failed" in caplog.text
    await tasks.close()


async def test_closing_ends_every_task() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    tasks = Supervised()
    tasks.forever("a", lambda: work("a"))
    tasks.once("b", work("b"))
    await asyncio.sleep(0)
    await asyncio.wait_for(tasks.close(), 30)
    assert sorted(ended) == ["a", "b"]


async def test_swallowed_cancellation_is_repeated() -> None:
    running, forgotten, ended = asyncio.Event(), 0, False

    async def work() -> None:
        nonlocal forgotten, ended
        try:
            running.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            forgotten += 1
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    tasks = Supervised()
    tasks.forever("worker", work)
    await running.wait()
    await tasks.close(timeout_s=1.0)
    assert (forgotten, ended) == (1, True)


async def test_work_that_was_cancelled_before_it_began_is_closed() -> None:
    """An unclosed coroutine would warn in a later test that it was never awaited."""

    async def work() -> None:
        raise AssertionError("it never begins")

    begun = work()
    tasks = Supervised()
    tasks.once("work", begun)
    await tasks.close()
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED
