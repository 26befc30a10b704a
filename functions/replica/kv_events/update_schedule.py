"""Prefix updates for the bus, from the engine's blocks and the requested kinds. No I/O; `watch` sends them.

Deltas are sent at most every TELL_INTERVAL_S, and only for changes or as a sign of life; blooms at most every
BLOOM_INTERVAL_S, while the set changes; a state at most every STATE_INTERVAL_S, on request. A delta that would be too
large becomes a state of a new generation, with which every gateway starts anew.

Worked example (test_worked_example_of_an_afternoon): a gateway that has just started requests events at t=0: a state
is sent. Blocks arrive at 0.1 and at 0.15: one delta at 0.2 with all of them, sequence 1. Then nothing until 5.2: a
delta without changes, sequence 1. After no request since 0, silence from t=15 on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix import block_bloom
from functions.fleet.prefix_updates import (
    ASKED_FOR_S,
    DELTA_NAMES,
    STATE_NAMES,
    Delta,
    Kind,
    PrefixBloom,
    PrefixRequest,
    PrefixUpdate,
    State,
    pack,
)
from functions.replica.kv_events.engine_blocks import BlockNameChanges, EngineBlocks

TELL_INTERVAL_S = 0.2
BLOOM_INTERVAL_S = 2.0
STATE_INTERVAL_S = 1.0
LIFE_SIGN_INTERVAL_S = 5.0


@dataclass(slots=True)
class _RequestedPrefixes:
    until_s: float = 0.0
    told_s: float = -1e9


class PrefixUpdates:
    """Schedule of prefix updates, on one event loop. `now_s` is monotonic, `generation` any number that grows."""

    def __init__(self, replica_id: ReplicaId, pool: PoolName, blocks: EngineBlocks, generation: int) -> None:
        self._replica_id, self._pool, self._blocks = replica_id, pool, blocks
        self._generation = generation
        self._sequence = 0
        self._asked: dict[Kind, _RequestedPrefixes] = {"events": _RequestedPrefixes(), "bloom": _RequestedPrefixes()}
        self._state_wanted = False
        self._state_told_s = -1e9
        self._bloom_is_old = True

    def record_request(self, ask: PrefixRequest, now_s: float) -> None:
        """Record that a gateway wants prefix updates of one kind for ASKED_FOR_S, and whether it needs the whole state.
        Requests for another pool are ignored."""
        if ask.pool != self._pool:
            return
        asked = self._asked[ask.kind]
        if now_s >= asked.until_s:  # there was no recent request, so the gateways know nothing
            asked.told_s = -1e9
            self._state_wanted |= ask.kind == "events"
            self._bloom_is_old |= ask.kind == "bloom"
        asked.until_s = now_s + ASKED_FOR_S
        if ask.everyone or self._replica_id in ask.states_of:
            self._state_wanted |= ask.kind == "events"
            self._bloom_is_old |= ask.kind == "bloom"

    def start_generation(self, generation: int) -> None:
        """Start a new generation: the engine's cache is another one, or the index lost count of it."""
        self._generation = max(generation, self._generation + 1)
        self._sequence = 0
        self._bloom_is_old = True
        self._asked["events"].told_s = -1e9  # an empty set must be published too

    def updates(self, now_s: float) -> Iterator[PrefixUpdate]:
        """Yield the updates to send now, all and in this order."""
        changes = self._blocks.pop_changes()
        self._bloom_is_old |= any(changes)
        if not _fits(changes):
            self._generation, self._sequence, self._state_wanted = self._generation + 1, 0, True
        elif any(changes):
            self._sequence += 1
        if now_s < self._asked["events"].until_s:
            yield from self._events(changes, now_s)
        if now_s < self._asked["bloom"].until_s:
            yield from self._bloom(now_s)

    def _events(self, changes: tuple[BlockNameChanges, BlockNameChanges], now_s: float) -> Iterator[PrefixUpdate]:
        asked = self._asked["events"]
        if self._state_wanted and now_s - self._state_told_s >= STATE_INTERVAL_S:
            self._state_wanted, self._state_told_s, asked.told_s = False, now_s, now_s
            if any(changes):
                yield self._delta(changes)  # gateways that are up to date need no state
            yield from self._state()
        elif any(changes) or now_s - asked.told_s >= LIFE_SIGN_INTERVAL_S:
            asked.told_s = now_s
            yield self._delta(changes)

    def _delta(self, changes: tuple[BlockNameChanges, BlockNameChanges]) -> Delta:
        names = [pack(those) if _fits(changes) else b"" for one in changes for those in (one.added, one.removed)]
        return Delta(
            self._replica_id,
            self._pool,
            self._generation,
            self._sequence,
            self._blocks.block_tokens,
            *names,
        )

    def _state(self) -> Iterator[State]:
        names, host_names = self._blocks.names, self._blocks.host_names
        parts = max(1, -(-max(len(names), len(host_names)) // STATE_NAMES))
        for part in range(parts):
            yield State(
                self._replica_id,
                self._pool,
                self._generation,
                self._sequence,
                self._blocks.block_tokens,
                part,
                parts,
                pack(names[part * STATE_NAMES : (part + 1) * STATE_NAMES]),
                pack(host_names[part * STATE_NAMES : (part + 1) * STATE_NAMES]),
            )

    def _bloom(self, now_s: float) -> Iterator[PrefixUpdate]:
        asked = self._asked["bloom"]
        since_s = now_s - asked.told_s
        if since_s >= (BLOOM_INTERVAL_S if self._bloom_is_old else LIFE_SIGN_INTERVAL_S):
            self._bloom_is_old, asked.told_s = False, now_s
            names, host_names = self._blocks.names, self._blocks.host_names
            yield PrefixBloom(
                self._replica_id,
                self._pool,
                self._blocks.block_tokens,
                len(names) + len(host_names),
                block_bloom.build(names),
                block_bloom.build([*names, *host_names]) if host_names else b"",
            )


def _fits(changes: Iterable[BlockNameChanges]) -> bool:
    return all(max(len(one.added), len(one.removed)) <= DELTA_NAMES for one in changes)
