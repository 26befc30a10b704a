"""AIBrix's `prefix-cache` (pkg/plugins/gateway/algorithms/prefix_cache.go), with the defaults of its code.

    out of balance    most - fewest running > MAX_GAP   -> only replicas with the fewest are searched for a match
    matched           by share of the prompt, then by fewest running: the first with running <= mean + 1 deviation
    no match          the fewest running, at random among equals

The prompt's blocks are then assigned to the chosen replica, in one table of MAX_BLOCKS for all. AIBrix's block is
four characters of text by default; here it is the workload's. AIBrix drops blocks unused for 20 minutes; no run here
lasts that long without filling the table. Requests running are the gateway's own count. Later versions of the code
also require that the most be over twice the mean of the others. With that rule, five of eight replicas with a
prompt's first block could keep all of its traffic on the Mooncake trace, so the earlier rule is compared. Worked
example (test_worked_example_from_the_prologue): A, B and C run 12, 1 and 1: 11 > 8, so A's match does not count. With
4, 1 and 1 it counts, unless 4 is above mean 2 + deviation 1.41: it is, and B or C answers. With 3, 2 and 3 A does.
"""

from collections.abc import Sequence
from math import sqrt

from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.simulator.router_port import Draws, Question
from studies.routers.block_owners import BlockOwners

MAX_GAP = 8
DEVIATIONS = 1
MAX_BLOCKS = 200_000


class AIBrix:
    def __init__(self, rng: Draws) -> None:
        self._rng = rng
        self._owners = BlockOwners(MAX_BLOCKS)

    def pick(self, asked: Question, rows: Sequence[Row], load: OwnLoad) -> Row:
        running = {row[0]: load.in_flight.get(row[0], 0) for row in rows}
        fewest = min(running.values())
        able = rows
        if max(running.values()) - fewest > MAX_GAP:
            able = [row for row in rows if running[row[0]] == fewest]
        matched = self._owners.matched(asked.blocks, [row[0] for row in able])
        mean = sum(running.values()) / len(rows)
        deviation = sqrt(sum((count - mean) ** 2 for count in running.values()) / len(rows))
        fit = [row for row in able if row[0] in matched and running[row[0]] <= mean + DEVIATIONS * deviation]
        if fit:
            best = max((matched[row[0]], -running[row[0]]) for row in fit)
            chosen = self._rng.choice([row for row in fit if (matched[row[0]], -running[row[0]]) == best])
        else:
            chosen = self._rng.choice([row for row in rows if running[row[0]] == fewest])
        self._owners.enter(asked.blocks, chosen[0])
        return chosen

    def started(self, key: str) -> None:
        """Do nothing: the gateway counts requests."""

    def ended(self, key: str) -> None:
        """Do nothing: the gateway counts requests."""
