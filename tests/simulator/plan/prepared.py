"""Five prepared changes and two trades for one small fleet: `cases/base`, and the files that each replaces.

affinity-lost    sessions and sent prompts forgotten at once    bad: caches are of little use
fewer-replicas   three at most instead of eight                 bad
fallback-added   the full pool may fall back to one with room   good
batch-on-spot    a second pool, of spot machines, for batch     a trade: all requests wait less, and tokens cost more
fp8-cache        KV cache in 8 bits                             good: the large pool holds twice as many
tenant-added     a tenant that sends nothing yet                neutral
smaller-steps    steps of 512 tokens instead of 8,192           a trade: shorter gaps, later first tokens
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from functions.api.loader import load_directory
from functions.controller.gitops.changes import compiled
from functions.simulator.plan.declarations import declarations_of
from functions.simulator.plan.planned_fleet import PlannedFleet, fleet_of

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    verdict: str
    options: tuple[str, ...] = ()

    @property
    def refuses(self) -> bool:
        return self.verdict == "breaks"


PREPARED = {
    "affinity-lost": Case("breaks", ("--pool", "chat-8b", "--load", "0.9", "--requests", "2500", "--seeds", "5")),
    "fewer-replicas": Case("breaks"),
    "fallback-added": Case("better", ("--load", "large-32b=1.1", "--load", "chat-8b=0.3")),
    "fp8-cache": Case("better", ("--load", "0.8")),
    "batch-on-spot": Case("mixed", ("--load", "1.0")),
    "tenant-added": Case("same"),
    "smaller-steps": Case("mixed"),
}


def written(folder: Path, name: str | None = None) -> Path:
    """Write the fleet's files into a folder, with those of the case in their place."""
    for source in ("base", *([name] if name is not None else [])):
        # Use the current time as mtime: git takes a file of the same size and second as unchanged.
        shutil.copytree(CASES / source, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return folder


def planned(folder: Path) -> PlannedFleet:
    loaded = load_directory([folder], relative_to=folder)
    return fleet_of(compiled(loaded, {}), declarations_of(loaded))
