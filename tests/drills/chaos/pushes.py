"""Pushes to the branch during faults: a commit changes a tier's weight every half minute."""

import random
import re
import threading
from collections import Counter
from contextlib import suppress

from tests.e2e.projects import QUOTAS
from tests.fleets import Fleet

_WEIGHT = re.compile(r"weight: \d+")


class Pushes:
    def __init__(self, fleet: Fleet, every_s: float, seed: int) -> None:
        self.told: Counter[str] = Counter()
        self.refused: list[str] = []
        self._fleet, self._every_s = fleet, every_s
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(180)

    def _run(self) -> None:
        while not self._over.wait(self._every_s * self._rng.uniform(0.5, 1.5)):
            outcome = "no answer"
            with suppress(Exception):
                text = _WEIGHT.sub(f"weight: {self._rng.randint(1, 9)}", self._fleet.read(QUOTAS))
                done = self._fleet.push({QUOTAS: text})
                outcome = "accepted" if done.returncode == 0 else "refused"
                if done.returncode:
                    self.refused.append(done.stderr[-300:])
            self.told[f"push {outcome}"] += 1
