"""The agent reads a real publisher: gaps, replays, restarts, and an engine without a replay buffer."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix.block_names import chain, scope_seed
from functions.engines.sim.blocks import CacheScope, Remembered, block_hash
from functions.engines.sim.kv_events import KvEventPublisher, KvEventsConfig
from functions.fleet.tasks import Supervised
from functions.replica.kv_events import watch as watch_module
from functions.replica.kv_events.source import EventSource
from functions.replica.kv_events.watch import KvWatch

BLOCK = 4
WAIT_S = 60.0


class SilentBus:
    """Bus without requests for prefixes."""

    async def publish_prefixes(self, message: bytes) -> None:
        raise AssertionError("told without being asked")

    async def prefixes(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def publish_prefix_request(self, message: bytes) -> None:
        raise AssertionError("an agent asks nobody")

    async def prefix_requests(self) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def close(self) -> None:
        return


class Engine:
    """Publisher that stores the blocks of one endless prompt in order."""

    def __init__(
        self, directory: Path, *, replays: bool = True, kept: int = 10_000, clock: Callable[[], float]
    ) -> None:
        self.config = KvEventsConfig(
            enable_kv_cache_events=True,
            endpoint=f"ipc://{directory}/events",
            replay_endpoint=f"ipc://{directory}/replay" if replays else None,
            buffer_steps=kept,
        )
        self.publisher = KvEventPublisher(self.config, clock)
        self.publisher.start()
        self._parent: bytes | None = None
        self.tokens = array("q")

    def store(self, blocks: int, first_token: int = 0) -> None:
        """Publish each block in its own batch."""
        for _ in range(blocks):
            start = first_token + len(self.tokens)
            tokens = array("q", range(start, start + BLOCK))
            name = block_hash(self._parent, tokens, CacheScope())
            self.publisher.publish([Remembered(name, self._parent, tokens, CacheScope())], BLOCK)
            self._parent = name
            self.tokens.extend(tokens)

    @property
    def names(self) -> set[int]:
        return set(chain(scope_seed("", ""), self.tokens, BLOCK))


@pytest.fixture
def tick() -> Callable[[], float]:
    """A wall clock that advances with every call."""
    numbers = count(1)
    return lambda: float(next(numbers))


def watching(engine: Engine, computes: Callable[[], bool] = lambda: False) -> KvWatch:
    source = EventSource(engine.config.endpoint, engine.config.replay_endpoint or "")
    ticks = count(1)
    return KvWatch(
        replica_id=ReplicaId("r-0"),
        pool=PoolName("base"),
        source=source,
        bus=SilentBus(),
        clock=lambda: 0.0,
        wall_clock=lambda: float(next(ticks)),
        engine_computes=computes,
    )


async def until(what: str, condition: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


async def test_blocks_stored_before_the_agent_start_are_replayed(tmp_path: Path, tick: Callable[[], float]) -> None:
    engine = Engine(tmp_path, clock=tick)
    engine.store(20)
    watch, tasks = watching(engine), Supervised()
    watch.start(tasks)
    await until("all of it", lambda: set(watch.blocks.names) == engine.names)
    engine.store(20)
    await until("all of it", lambda: set(watch.blocks.names) == engine.names)
    assert watch.lost_total == 0
    await tasks.close()
    await watch.close()
    engine.publisher.close()


async def test_batches_missed_before_the_subscription_are_requested_in_silence(
    tmp_path: Path, tick: Callable[[], float]
) -> None:
    """No later batch shows the gap, since the engine publishes nothing more."""
    engine = Engine(tmp_path, clock=tick)
    watch, tasks = watching(engine), Supervised()
    silences = count()

    async def hears_nothing(timeout_s: float) -> None:
        next(silences)
        await asyncio.sleep(min(timeout_s, 0.01))

    watch._source.next = hears_nothing  # type: ignore[method-assign]
    watch.start(tasks)
    await until("it has asked for what was before", lambda: next(silences) > 1)
    engine.store(20)
    await until("all of it", lambda: set(watch.blocks.names) == engine.names)
    assert watch.lost_total == 0
    await tasks.close()
    await watch.close()
    engine.publisher.close()


@pytest.mark.parametrize(
    ("before", "after", "clock_s"),
    [(200, 3, 1e6), (200, 3, -1e6), (2, 30, 1e6), (2, 30, -1e6)],
    ids=["shorter", "shorter, clock set back", "already longer", "already longer, clock set back"],
)
async def test_another_engine_at_the_same_address_begins_anew(
    tmp_path: Path, tick: Callable[[], float], before: int, after: int, clock_s: float
) -> None:
    """Sequence numbers and clock may look the same; the published blocks show that it is another engine."""
    first = Engine(tmp_path, clock=tick)
    watch, tasks = watching(first), Supervised()
    watch.start(tasks)
    first.store(before)
    await until("the first one's", lambda: set(watch.blocks.names) == first.names)
    first.publisher.close()
    second = Engine(tmp_path, clock=lambda: clock_s + tick())
    second.store(after, first_token=1000)
    while set(watch.blocks.names) != second.names:  # batches lost during the reconnect are replayed
        second.store(1, first_token=1000)
        assert len(second.tokens) < BLOCK * 200, "as many as the first engine's, and still not noticed"
        await asyncio.sleep(0.2)
    assert watch.lost_total == 1
    await tasks.close()
    await watch.close()
    second.publisher.close()


async def test_without_a_replay_buffer_a_gap_costs_the_index(tmp_path: Path, tick: Callable[[], float]) -> None:
    engine = Engine(tmp_path, replays=False, clock=tick)
    engine.store(5)
    await until("published", lambda: len(engine.publisher._kept) == 5)
    watch, tasks = watching(engine), Supervised()
    watch.start(tasks)
    while watch.batches_total == 0:  # a subscription takes its time
        engine.store(1)
        await asyncio.sleep(0.05)
    assert len(watch.blocks) == 0, "a child of blocks that were never heard of has no name"
    assert watch.blocks.left_out_total >= 1
    await tasks.close()
    await watch.close()
    engine.publisher.close()


async def test_a_buffer_that_is_too_short_costs_the_index_too(tmp_path: Path, tick: Callable[[], float]) -> None:
    engine = Engine(tmp_path, kept=4, clock=tick)
    engine.store(30)
    await until("published", lambda: len(engine.publisher._kept) == 4)
    watch, tasks = watching(engine), Supervised()
    watch.start(tasks)
    await until("the four that are left", lambda: watch.batches_total >= 4)
    assert len(watch.blocks) == 0 and watch.lost_total == 0, "there was nothing yet that could be lost"
    await tasks.close()
    await watch.close()
    engine.publisher.close()


async def test_whether_events_come_is_known_once_the_engine_computes(
    tmp_path: Path, tick: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_POLL_S", 0.001)
    engine = Engine(tmp_path, clock=tick)
    computing = False
    watch, tasks = watching(engine, lambda: computing), Supervised()
    watch.start(tasks)
    await asyncio.sleep(0.5)  # hundreds of silent polls of an engine that does nothing
    assert watch.receives_events is None
    computing = True
    await until("an engine that computes and tells nothing", lambda: watch.receives_events is False)
    engine.store(5)
    await until("its events come after all", lambda: watch.receives_events is True)
    await tasks.close()
    await watch.close()
    engine.publisher.close()
