"""A run: rounds of contenders in random order; each is started, measured and stopped before the next."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop
from rich.console import Console

from loadtests.bench.contenders import CONTENDERS, Contender, Setting
from loadtests.bench.figures import Sample
from loadtests.bench.gateway import Backdrop, backdrop
from loadtests.bench.parts import PARTS, Part, Rig
from loadtests.bench.processes import pin, raise_descriptor_limit

_MAX_STREAMS = 9_500  # maximum that shoal's gateway admits by default


class Plan:
    """Parts, contenders and number of rounds of a run."""

    def __init__(
        self, parts: Sequence[str], contenders: Sequence[str], rounds: int, streams: int, replicas: int, seed: int
    ) -> None:
        self.parts = [PARTS[name] for name in PARTS if name in parts]
        self.contenders = [name for name in CONTENDERS if name in contenders]
        self.rounds, self.replicas = rounds, replicas
        self.streams = min(streams, raise_descriptor_limit(), _MAX_STREAMS)
        self._random = random.Random(seed)

    def turns(self) -> list[tuple[int, str]]:
        """Return pairs (round, contender); each round has its own random order."""
        found = []
        for number in range(self.rounds):
            names = [name for name in self.contenders if number < CONTENDERS[name].rounds]
            found += [(number, name) for name in self._random.sample(names, len(names))]
        return found


def measure(plan: Plan, console: Console) -> list[Sample]:
    pin(0, 1)  # pin this process to another CPU than the gateway's
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as folder, backdrop(Path(folder), plan.replicas, 64, 10.0) as behind:
        for number, name in plan.turns():
            console.print(f"[dim]round {number + 1} of {plan.rounds}: {name}[/dim]")
            samples += _turn(plan, number, name, behind, console)
    return samples


def _turn(plan: Plan, number: int, name: str, behind: Backdrop, console: Console) -> list[Sample]:
    parts = [part for part in plan.parts if number < part.rounds and (name != "direct" or part.direct)]
    figures: dict[str, float] = {}
    for together in by_process(parts):
        try:
            with _started(CONTENDERS[name], plan.streams, behind, console) as rig:
                for part in together:
                    _add(figures, uvloop.run(part.measure(rig)))
        except (RuntimeError, OSError, TimeoutError) as error:  # one peer fails; measure the others
            console.print(f"[red]{name}: {error}[/red]")
            _add(figures, {"failed": 1})
    return [Sample(number, name, figure, value) for figure, value in figures.items()]


def by_process(parts: list[Part]) -> list[list[Part]]:
    """Group the parts by process: each fresh part has its own, the others share one."""
    shared = [part for part in parts if not part.fresh]
    return [*([part] for part in parts if part.fresh), *([shared] if shared else [])]


def _add(figures: dict[str, float], more: dict[str, float]) -> None:
    failed = figures.get("failed", 0) + more.get("failed", 0)
    figures.update(more)
    figures["failed"] = failed


@contextmanager
def _started(contender: Contender, streams: int, behind: Backdrop, console: Console) -> Iterator[Rig]:
    with (
        tempfile.TemporaryDirectory() as folder,
        contender.start(Setting(Path(folder), behind, streams, console)) as rig,
    ):
        yield rig
