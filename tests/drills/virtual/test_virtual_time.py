"""The ground that the seeds stand on: time that jumps, and connections in memory that behave as TCP's do."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.drills.virtual.loop import Node, Stuck, VirtualLoop
from tests.drills.virtual.pipes import WINDOW_BYTES, Network, PipeTransport

ADDRESS = ("server", 1)


class End(asyncio.Protocol):
    """Remembers what happened to it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = bytearray()
        self.times: list[float] = []
        self.lost: list[Exception | None] = []
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.times.append(asyncio.get_running_loop().time())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


class World:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = Network(self.loop, "7")
        self.client, self.server = Node("client"), Node("server")
        self.served: list[End] = []
        self.network.listen(self.server, ADDRESS, self._serve)

    def _serve(self) -> End:
        self.served.append(End())
        return self.served[-1]

    def run(self, scenario: Callable[["World"], Awaitable[None]]) -> float:
        """How many virtual seconds it took."""
        began_s = self.loop.time()
        self.loop.run_until_complete(scenario(self))
        return self.loop.time() - began_s

    async def connected(self) -> tuple[End, End]:
        _, mine = await self.network.connect(self.client, End, *ADDRESS)
        return mine, self.served[-1]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


def test_an_hour_passes_at_once(world: World) -> None:
    async def scenario(world: World) -> None:
        rung: list[int] = []
        for number in (3, 1, 2):
            world.loop.call_later(number * 1000.0, rung.append, number)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await asyncio.Event().wait()
        assert rung == [1, 2, 3]

    assert world.run(scenario) == pytest.approx(3600.0)


def test_what_can_never_go_on_says_so(world: World) -> None:
    async def waits_for_nobody(world: World) -> None:
        await asyncio.Event().wait()

    async def spins(world: World) -> None:
        while True:
            await asyncio.sleep(0)

    for scenario in (waits_for_nobody, spins):
        with pytest.raises(Stuck):
            world.run(scenario)
        for task in asyncio.all_tasks(world.loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                world.loop.run_until_complete(task)


def test_threads_are_refused(world: World) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    world.run(scenario)


def test_bytes_arrive_whole_and_in_order_however_ragged(world: World) -> None:
    async def scenario(world: World) -> None:
        world.network.ragged_ratio = 1.0
        mine, theirs = await world.connected()
        sent = b"".join(b"%d," % number for number in range(300))
        for start in range(0, len(sent), 10):
            mine.transport.write(sent[start : start + 10])
        await asyncio.sleep(60.0)
        assert bytes(theirs.got) == sent and len(theirs.times) > len(sent) / 10
        assert theirs.times == sorted(theirs.times)

    world.run(scenario)


def test_a_blocked_way_delays_and_loses_nothing(world: World) -> None:
    async def scenario(world: World) -> None:
        mine, theirs = await world.connected()
        world.network.block("client", "server", world.loop.time() + 5.0)
        blocked_s = world.loop.time()
        mine.transport.write(b"to")
        theirs.transport.write(b"fro")
        await asyncio.sleep(1.0)
        assert bytes(mine.got) == b"fro" and not theirs.got, "the other way is open"
        await asyncio.sleep(9.0)
        assert bytes(theirs.got) == b"to" and theirs.times[0] >= blocked_s + 5.0

    world.run(scenario)


def test_who_connects_over_a_blocked_way_waits_until_he_gives_up(world: World) -> None:
    async def scenario(world: World) -> None:
        world.network.block("client", "server", world.loop.time() + 5.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await world.connected()
        assert not world.served and not world.network.ends

    assert world.run(scenario) == pytest.approx(1.0)


def test_nobody_listens(world: World) -> None:
    async def scenario(world: World) -> None:
        world.network.stop_listening(world.server)
        with pytest.raises(ConnectionRefusedError):
            await world.connected()

    world.run(scenario)


def test_a_reset_reaches_both_ends_once(world: World) -> None:
    async def scenario(world: World) -> None:
        mine, theirs = await world.connected()
        mine.transport.reset("a test")
        await asyncio.sleep(10.0)
        for end in (mine, theirs):
            assert [type(error) for error in end.lost] == [ConnectionResetError]
            assert end.transport.broken_by == "a test"
        assert not world.network.ends

    world.run(scenario)


def test_a_close_delivers_what_was_written_before(world: World) -> None:
    async def scenario(world: World) -> None:
        mine, theirs = await world.connected()
        mine.transport.write(b"farewell")
        mine.transport.close()
        await asyncio.sleep(10.0)
        assert bytes(theirs.got) == b"farewell"
        assert mine.lost == theirs.lost == [None] and not world.network.ends

    world.run(scenario)


def test_who_reads_nothing_stops_the_writer(world: World) -> None:
    async def scenario(world: World) -> None:
        mine, theirs = await world.connected()
        theirs.transport.pause_reading()
        piece = b"x" * 4096
        while not mine.paused:
            mine.transport.write(piece)
        assert mine.transport.get_write_buffer_size() > 0
        await asyncio.sleep(10.0)
        assert mine.paused and not theirs.got
        theirs.transport.resume_reading()
        await asyncio.sleep(10.0)
        assert not mine.paused and len(theirs.got) > WINDOW_BYTES

    world.run(scenario)


def test_a_killed_process_says_nothing_and_its_peers_are_reset(world: World) -> None:
    async def scenario(world: World) -> None:
        mine, theirs = await world.connected()
        world.network.kill(world.server)
        mine.transport.write(b"anybody there?")
        await asyncio.sleep(10.0)
        assert [type(error) for error in mine.lost] == [ConnectionResetError]
        assert not theirs.lost and not theirs.got
        with pytest.raises(ConnectionRefusedError):
            await world.connected()

    world.run(scenario)


def _raises(data: bytes) -> None:
    raise ZeroDivisionError


def test_a_protocol_that_raises_is_told_of(world: World) -> None:
    raised: list[tuple[PipeTransport, Exception]] = []

    async def scenario(world: World) -> None:
        world.network.on_raised = lambda end, error: raised.append((end, error))
        mine, theirs = await world.connected()
        theirs.data_received = _raises  # type: ignore[method-assign]
        mine.transport.write(b"?")
        await asyncio.sleep(10.0)
        assert [type(error) for _, error in raised] == [ZeroDivisionError]
        assert mine.transport.lost and theirs.transport.lost

    world.run(scenario)
