"""Which faults occur, in which order and for how long: drawn from a seed, so that a run can be repeated.

Law: pure. A deck holds every pair of kind and target. It is shuffled, dealt to its end and shuffled again, so that all
pairs are about equally frequent within an hour. A quarter of the rounds has two faults at once, never two of the same
target.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

PROCESSES = (
    "gateway-1", "gateway-2", "registry-1", "registry-2", "postgres", "controller",
    "bus", "s3", "traces", "engine", "agent",
)  # fmt: skip
DISKS = ("gateway-1", "gateway-2", "agents", "registry-1", "registry-2", "postgres", "s3", "traces", "controller")
LINKS = ("gateway-2-bus", "gateway-2-registry", "gateway-2-engines", "registry-2-postgres", "registry-2-bus")
SERVERS = ("registry-1", "registry-2", "postgres", "bus", "s3", "traces", "engine", "agent", "gateway-2")

# Targets of each kind, and seconds (least and most).
KINDS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "kill": (PROCESSES, 0.0, 0.0),
    "stop": (PROCESSES, 3.0, 20.0),
    "slow": (PROCESSES, 8.0, 20.0),  # stopped for 80 ms of each 100 ms
    "lossy": (SERVERS, 8.0, 20.0),  # a fifth of the packets to and from its port is lost
    "full": (DISKS, 10.0, 25.0),
    "part": (SERVERS + LINKS, 5.0, 25.0),  # packets are dropped silently
}
_TWO_AT_ONCE = 0.25


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    target: str
    seconds: float
    draw: float  # in [0, 1): which process, if the target is a kind of process

    def __str__(self) -> str:
        return f"{self.kind} {self.target}" + (f" {self.seconds:.0f} s" if self.seconds else "")


def rounds(seed: int) -> Iterator[tuple[Fault, ...]]:
    """Yield one or two faults a round, without end."""
    rng = random.Random(seed)
    deck = _dealt(rng)
    while True:
        faults = [next(deck)]
        if rng.random() < _TWO_AT_ONCE:
            other = next(deck)
            while other.target == faults[0].target:
                other = next(deck)
            faults.append(other)
        yield tuple(faults)


def _dealt(rng: random.Random) -> Iterator[Fault]:
    while True:
        pairs = [(kind, target) for kind, (targets, _, _) in KINDS.items() for target in targets]
        rng.shuffle(pairs)
        for kind, target in pairs:
            _, least_s, most_s = KINDS[kind]
            yield Fault(kind, target, round(rng.uniform(least_s, most_s), 1), rng.random())
