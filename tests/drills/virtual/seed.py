"""One seed: its run, log and verdict."""

import asyncio
import contextlib
import gc
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.drills.virtual import checks
from tests.drills.virtual.fleet import Fleet
from tests.drills.virtual.loop import Stuck, VirtualLoop
from tests.drills.virtual.replica_node import make_adapters


@dataclass(frozen=True, slots=True)
class Verdict:
    seed: int
    breaches: tuple[str, ...]
    log: tuple[str, ...]
    hash: str
    faults: tuple[str, ...]
    endings: dict[str, int]
    usage: dict[str, int]
    virtual_s: float
    wall_s: float


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Provide a folder for the adapters of all seeds and the engines' usage logs."""
    folder = Path(tempfile.mkdtemp(prefix="seeds-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_seed(seed: int, place: Path) -> Verdict:
    """Run the seed; within one process and PYTHONHASHSEED the verdict, hash included, is reproducible."""
    began_s = time.perf_counter()
    adapters_at = place / "adapters"
    adapters = make_adapters(adapters_at) if not adapters_at.exists() else known_adapters(adapters_at)
    folder = Path(tempfile.mkdtemp(dir=place))
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    started_s = loop.time()
    fleet = Fleet(str(seed), folder, adapters, loop)
    breaches: list[str] = []
    usage: Counter[str] = Counter()
    gc.disable()  # collections run depending on memory, which no seed determines
    try:
        with fleet.witness.watching():
            loop.run_until_complete(fleet.run())
        breaches += checks.all_breaches(fleet)
        usage = fleet.witness.usage.table() + fleet.bills.table()
    except Stuck as stuck:
        breaches.append(f"stuck: {stuck}")
    finally:
        virtual_s = loop.time() - started_s
        end(loop, fleet)
        gc.enable()
        shutil.rmtree(folder)
    endings: dict[str, int] = {}
    for outcome in fleet.outcomes:
        endings[outcome.ending] = endings.get(outcome.ending, 0) + 1
    return Verdict(
        seed,
        tuple(breaches),
        tuple(fleet.witness.lines),
        fleet.witness.hash(),
        tuple(fault.kind for fault in fleet.faults),
        endings,
        dict(usage),
        virtual_s,
        time.perf_counter() - began_s,
    )


def known_adapters(folder: Path) -> dict[str, Path]:
    from tests.drills.virtual.platform import ADAPTERS

    return {name: folder / f"adapter-{number}" for number, name in enumerate(ADAPTERS)}


def end(loop: VirtualLoop, fleet: Fleet) -> None:
    """Leave no task or file behind. Callbacks that end with the loop may write last bills, so these are closed after
    it.
    """
    _close(loop)
    fleet.bills.close()


def _close(loop: VirtualLoop) -> None:
    """Cancel all tasks (the feeds run for ever) and close the loop."""
    with contextlib.suppress(Stuck):
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()
