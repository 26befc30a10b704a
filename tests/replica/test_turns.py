"""Load scheduler: separate places for urgent and early loads, and early loads that become urgent."""

import asyncio

from functions.replica.source import LoadScheduler


class Works:
    def __init__(self, turns: LoadScheduler[str]) -> None:
        self._turns = turns
        self._ends: dict[str, asyncio.Event] = {}
        self.running: list[str] = []

    async def work(self, key: str, *, urgent: bool = False) -> None:
        end = self._ends.setdefault(key, asyncio.Event())
        async with self._turns.turn(key, urgent=urgent):
            self.running.append(key)
            try:
                await end.wait()
            finally:
                self.running.remove(key)

    async def end(self, *keys: str) -> None:
        for key in keys:
            self._ends.setdefault(key, asyncio.Event()).set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def test_urgent_and_early_loads_have_separate_places() -> None:
    turns: LoadScheduler[str] = LoadScheduler(urgent=1, ahead=1)
    works = Works(turns)
    async with asyncio.TaskGroup() as group:
        for key in ("slow", "second", "third"):
            group.create_task(works.work(key))
        await works.settle()
        assert works.running == ["slow"]
        turns.hurry("third")
        await works.settle()
        assert works.running == ["slow", "third"]
        group.create_task(works.work("now", urgent=True))
        turns.hurry("slow")  # it already runs, so nothing changes
        turns.hurry("nobody")
        await works.settle()
        assert works.running == ["slow", "third"]
        await works.end("third")
        assert works.running == ["slow", "now"]
        await works.end("slow")
        assert works.running == ["now", "second"]
        await works.end("now", "second")
    assert works.running == []


async def test_cancelled_load_frees_its_place() -> None:
    turns: LoadScheduler[str] = LoadScheduler(urgent=1, ahead=1)
    works = Works(turns)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(works.work("first"))
        waiting = group.create_task(works.work("waiting"))
        last = group.create_task(works.work("last"))
        await works.settle()
        waiting.cancel()
        first.cancel()
        await works.settle()
        assert works.running == ["last"]
        last.cancel()
        async with asyncio.timeout(60), turns.turn("again", urgent=False):
            pass


async def test_load_cancelled_when_its_place_is_granted_passes_it_on() -> None:
    turns: LoadScheduler[str] = LoadScheduler(urgent=1, ahead=1)
    works = Works(turns)
    async with asyncio.TaskGroup() as group:
        async with turns.turn("first", urgent=False):
            second = group.create_task(works.work("second"))
            await works.settle()
        second.cancel()
        await works.settle()
        assert (second.cancelled(), works.running) == (True, [])
        async with asyncio.timeout(60), turns.turn("third", urgent=False):
            pass
