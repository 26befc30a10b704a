"""Blocking calls on daemon threads, which do not delay the end of the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from functions.replica.daemon_threads import in_daemon_thread


async def test_it_returns_and_raises_what_the_work_does() -> None:
    assert await in_daemon_thread("t", lambda: threading.current_thread().name) == "t"
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread("t", lambda: 1 // 0)


async def test_cancelling_the_wait_leaves_the_work_to_itself() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(60)
        ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await in_daemon_thread("t", work)
    may_end.set()
    assert await in_daemon_thread("wait", lambda: ended.wait(60))


def test_a_stuck_call_does_not_keep_the_process() -> None:
    program = """
import asyncio, time
from functions.replica.daemon_threads import in_daemon_thread
async def main():
    try:
        async with asyncio.timeout(0.1):
            await in_daemon_thread("stuck", lambda: time.sleep(60))
    except TimeoutError:
        print("left")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"left\n"
    assert done.stderr == b""
