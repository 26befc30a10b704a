"""Bounded threads: each item is processed once, within the parallelism limit, and the first failure ends the run."""

import threading

import pytest

from functions.artifacts.workers import run_all


@pytest.mark.parametrize("parallel", [1, 3, 50])
def test_every_item_is_worked_on_once(parallel: int) -> None:
    done: list[int] = []
    run_all(done.append, range(20), parallel=parallel)
    assert sorted(done) == list(range(20))
    run_all(done.append, [], parallel=parallel)


def test_no_more_at_once_than_allowed_and_as_many_as_that() -> None:
    meeting = threading.Barrier(3, timeout=30.0)  # passes only if three threads work at once
    running = 0
    most = 0
    lock = threading.Lock()

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait()
        with lock:
            running -= 1

    run_all(work, range(9), parallel=3)
    assert most == 3


def test_the_first_failure_is_raised_and_ends_it() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise RuntimeError("broken")
        done.append(item)

    with pytest.raises(RuntimeError, match="broken"):
        run_all(work, range(1000), parallel=1)
    assert done == [0, 1, 2]
    with pytest.raises(RuntimeError, match="broken"):
        run_all(work, range(1000), parallel=4)
