"""tools.waiting: a slot is occupied until its thread has ended, and slots are separate per tenant."""

import asyncio
import threading

import pytest

from functions.gateway.chat.tools.calls import MAX_OF_TENANT, TenantThreads


async def test_timeout_does_not_free_the_thread() -> None:
    threads, may_end = TenantThreads(), threading.Event()
    begun: list[int] = []

    def hang() -> None:
        begun.append(1)
        may_end.wait(60)

    for _ in range(3 * MAX_OF_TENANT):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await threads.run("slow", hang)
    assert await threads.run("other", lambda: "found") == "found"
    assert len(begun) <= MAX_OF_TENANT
    may_end.set()
    async with asyncio.timeout(60):
        assert await threads.run("slow", lambda: "again") == "again"


async def test_exception_in_a_thread_reaches_the_caller() -> None:
    def fail() -> None:
        raise OSError("no such host")

    threads = TenantThreads()
    for _ in range(2 * MAX_OF_TENANT):
        with pytest.raises(OSError, match="no such host"):
            await threads.run("acme", fail)
