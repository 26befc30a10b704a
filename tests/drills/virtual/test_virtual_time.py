"""Foundations of the seeds: time that jumps, and connections in memory that behave like TCP."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.drills.virtual.loop import Node, Stuck, VirtualLoop
from tests.drills.virtual.pipes import WINDOW_BYTES, Network, PipeTransport

ADDRESS = ("server", 1)


class End(asyncio.Protocol):
    """Records what happens to its connection."""

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


class Rig:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = Network(self.loop, "7")
        self.client, self.server = Node("client"), Node("server")
        self.served: list[End] = []
        self.network.listen(self.server, ADDRESS, self._serve)

    def _serve(self) -> End:
        self.served.append(End())
        return self.served[-1]

    def run(self, scenario: Callable[["Rig"], Awaitable[None]]) -> float:
        """Run the scenario and return the virtual seconds it took."""
        began_s = self.loop.time()
        self.loop.run_until_complete(scenario(self))
        return self.loop.time() - began_s

    async def connected(self) -> tuple[End, End]:
        _, mine = await self.network.connect(self.client, End, *ADDRESS)
        return mine, self.served[-1]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.loop.close()


def test_an_hour_passes_at_once(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        rung: list[int] = []
        for number in (3, 1, 2):
            rig.loop.call_later(number * 1000.0, rung.append, number)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await asyncio.Event().wait()
        assert rung == [1, 2, 3]

    assert rig.run(scenario) == pytest.approx(3600.0)


def test_deadlock_and_busy_loop_raise_stuck(rig: Rig) -> None:
    async def waits_for_nobody(rig: Rig) -> None:
        await asyncio.Event().wait()

    async def spins(rig: Rig) -> None:
        while True:
            await asyncio.sleep(0)

    for scenario in (waits_for_nobody, spins):
        with pytest.raises(Stuck):
            rig.run(scenario)
        for task in asyncio.all_tasks(rig.loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                rig.loop.run_until_complete(task)


def test_threads_are_refused(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(RuntimeError, match="no threads"):
            await asyncio.to_thread(print)

    rig.run(scenario)


def test_ragged_bytes_arrive_whole_and_in_order(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        rig.network.ragged_ratio = 1.0
        mine, theirs = await rig.connected()
        sent = b"".join(b"%d," % number for number in range(300))
        for start in range(0, len(sent), 10):
            mine.transport.write(sent[start : start + 10])
        await asyncio.sleep(60.0)
        assert bytes(theirs.got) == sent and len(theirs.times) > len(sent) / 10
        assert theirs.times == sorted(theirs.times)

    rig.run(scenario)


def test_blocked_path_delays_and_loses_nothing(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        mine, theirs = await rig.connected()
        rig.network.block("client", "server", rig.loop.time() + 5.0)
        blocked_s = rig.loop.time()
        mine.transport.write(b"to")
        theirs.transport.write(b"fro")
        await asyncio.sleep(1.0)
        assert bytes(mine.got) == b"fro" and not theirs.got, "the other way is open"
        await asyncio.sleep(9.0)
        assert bytes(theirs.got) == b"to" and theirs.times[0] >= blocked_s + 5.0

    rig.run(scenario)


def test_connect_over_a_blocked_path_times_out(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        rig.network.block("client", "server", rig.loop.time() + 5.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await rig.connected()
        assert not rig.served and not rig.network.ends

    assert rig.run(scenario) == pytest.approx(1.0)


def test_connect_without_a_listener_is_refused(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        rig.network.stop_listening(rig.server)
        with pytest.raises(ConnectionRefusedError):
            await rig.connected()

    rig.run(scenario)


def test_a_reset_reaches_both_ends_once(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        mine, theirs = await rig.connected()
        mine.transport.reset("a test")
        await asyncio.sleep(10.0)
        for end in (mine, theirs):
            assert [type(error) for error in end.lost] == [ConnectionResetError]
            assert end.transport.broken_by == "a test"
        assert not rig.network.ends

    rig.run(scenario)


def test_a_close_delivers_what_was_written_before(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        mine, theirs = await rig.connected()
        mine.transport.write(b"farewell")
        mine.transport.close()
        await asyncio.sleep(10.0)
        assert bytes(theirs.got) == b"farewell"
        assert mine.lost == theirs.lost == [None] and not rig.network.ends

    rig.run(scenario)


def test_paused_reader_stops_the_writer(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        mine, theirs = await rig.connected()
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

    rig.run(scenario)


def test_killed_process_is_silent_and_its_peers_are_reset(rig: Rig) -> None:
    async def scenario(rig: Rig) -> None:
        mine, theirs = await rig.connected()
        rig.network.kill(rig.server)
        mine.transport.write(b"anybody there?")
        await asyncio.sleep(10.0)
        assert [type(error) for error in mine.lost] == [ConnectionResetError]
        assert not theirs.lost and not theirs.got
        with pytest.raises(ConnectionRefusedError):
            await rig.connected()

    rig.run(scenario)


def _raises(data: bytes) -> None:
    raise ZeroDivisionError


def test_exception_in_a_protocol_is_reported(rig: Rig) -> None:
    raised: list[tuple[PipeTransport, Exception]] = []

    async def scenario(rig: Rig) -> None:
        rig.network.on_raised = lambda end, error: raised.append((end, error))
        mine, theirs = await rig.connected()
        theirs.data_received = _raises  # type: ignore[method-assign]
        mine.transport.write(b"?")
        await asyncio.sleep(10.0)
        assert [type(error) for _, error in raised] == [ZeroDivisionError]
        assert mine.transport.lost and theirs.transport.lost

    rig.run(scenario)
