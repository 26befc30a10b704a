"""Schedule of the agent's prefix updates: only on request, rate-limited, and without gaps for a gateway."""

from array import array

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.prefix.block_bloom import build
from functions.decisions.prefix.block_names import chain, scope_seed
from functions.fleet import prefix_updates
from functions.fleet.prefix_updates import ASKED_FOR_S, Delta, PrefixBloom, PrefixRequest, PrefixUpdate, State, unpack
from functions.replica.kv_events.engine_blocks import EngineBlocks
from functions.replica.kv_events.source import BlocksRemoved, BlocksStored
from functions.replica.kv_events.update_schedule import BLOOM_INTERVAL_S, PrefixUpdates

EVENTS, BLOOM = PrefixRequest("base", "events"), PrefixRequest("base", "bloom")


class Agent:
    def __init__(self) -> None:
        self.blocks = EngineBlocks(1_000_000)
        self.telling = PrefixUpdates(ReplicaId("r-0"), PoolName("base"), self.blocks, 100)
        self._stored = 0

    def store(self, blocks: int) -> set[int]:
        """Store blocks of one token, each the first of its chain."""
        hashes = range(self._stored, self._stored + blocks)
        self._stored += blocks
        names = set()
        for number in hashes:
            self.blocks.apply_event(BlocksStored([number], [number], 1))
            names |= set(chain(scope_seed("", ""), array("q", [number]), 1))
        return names

    def updates(self, now_s: float) -> list[PrefixUpdate]:
        return list(self.telling.updates(now_s))


def kinds(updates: list[PrefixUpdate]) -> list[str]:
    return [type(item).__name__ for item in updates]


def test_worked_example_of_an_afternoon() -> None:
    agent = Agent()
    agent.telling.record_request(PrefixRequest("base", "events", everyone=True), 0.0)
    assert kinds(agent.updates(0.0)) == ["State"]
    names = agent.store(1) | agent.store(1)
    (delta,) = agent.updates(0.2)
    assert isinstance(delta, Delta) and delta.sequence == 1
    assert set(unpack(delta.added)) == names
    assert agent.updates(0.4) == agent.updates(5.1) == []
    (sign,) = agent.updates(5.2)
    assert isinstance(sign, Delta) and (sign.sequence, sign.added) == (1, b"")
    agent.store(1)
    assert agent.updates(ASKED_FOR_S) == []


def test_host_memory_blocks_are_reported_separately() -> None:
    agent = Agent()
    agent.telling.record_request(PrefixRequest("base", "events", everyone=True), 0.0)
    agent.updates(0.0)
    names = agent.store(3)
    agent.blocks.apply_event(BlocksStored([0, 1], [], 0, medium="CPU"))
    agent.updates(0.2)
    agent.blocks.apply_event(BlocksRemoved([0]))
    (delta,) = agent.updates(0.4)
    assert isinstance(delta, Delta) and delta.removed == delta.host_added and len(unpack(delta.host_added)) == 1
    agent.telling.record_request(PrefixRequest("base", "events", states_of=("r-0",)), 2.0)
    (state,) = agent.updates(2.0)
    assert isinstance(state, State) and state.host_names == delta.host_added
    assert set(unpack(state.names)) | set(unpack(state.host_names)) == names
    agent.telling.record_request(BLOOM, 3.0)
    bloom = agent.updates(3.0)[-1]
    assert isinstance(bloom, PrefixBloom) and bloom.names == 3
    assert (bloom.filter, bloom.anywhere) == (build(unpack(state.names)), build(names))


def test_no_updates_without_a_request() -> None:
    agent = Agent()
    agent.store(5)
    assert agent.updates(0.0) == []
    agent.telling.record_request(PrefixRequest("another", "events", everyone=True), 0.0)
    assert agent.updates(0.2) == []


def test_state_is_sent_on_request_and_rate_limited() -> None:
    agent = Agent()
    agent.telling.record_request(EVENTS, 0.0)
    assert kinds(agent.updates(0.0)) == ["State"], "whoever asks for the first time knows nothing"
    agent.telling.record_request(EVENTS, 5.0)
    assert kinds(agent.updates(5.0)) == ["Delta"]
    agent.telling.record_request(PrefixRequest("base", "events", states_of=("r-1",)), 6.0)
    assert agent.updates(6.0) == [], "that is another replica"
    wanted = PrefixRequest("base", "events", states_of=("r-0",))
    agent.telling.record_request(wanted, 7.0)
    assert kinds(agent.updates(7.0)) == ["State"]
    agent.telling.record_request(wanted, 7.1)
    assert agent.updates(7.2) == []
    assert kinds(agent.updates(8.0)) == ["State"]


def test_a_large_state_comes_in_parts_and_after_the_changes_up_to_it() -> None:
    agent = Agent()
    agent.telling.record_request(EVENTS, 0.0)
    agent.updates(0.0)
    names = agent.store(prefix_updates.STATE_NAMES + 1)
    agent.telling.record_request(PrefixRequest("base", "events", states_of=("r-0",)), 2.0)
    delta, first, second = agent.updates(2.0)
    assert isinstance(delta, Delta) and isinstance(first, State) and isinstance(second, State)
    assert delta.sequence == first.sequence == second.sequence == 1
    assert [(part.part, part.parts) for part in (first, second)] == [(0, 2), (1, 2)]
    assert {*unpack(first.names), *unpack(second.names)} == names == set(unpack(delta.added))


def test_too_many_changes_start_a_new_generation() -> None:
    agent = Agent()
    agent.telling.record_request(EVENTS, 0.0)
    agent.updates(0.0)
    agent.store(prefix_updates.DELTA_NAMES + 1)
    delta, *states = agent.updates(2.0)
    assert isinstance(delta, Delta) and delta.added == b"" and delta.generation == 101
    assert all(isinstance(part, State) and part.generation == 101 for part in states)
    assert all(len(prefix_updates.encode(update)) <= prefix_updates.UPDATE_MAX_BYTES for update in (delta, *states))


def test_new_engine_is_reported_at_once() -> None:
    agent = Agent()
    agent.telling.record_request(EVENTS, 0.0)
    agent.store(3)
    agent.updates(0.0)
    agent.blocks.clear()
    agent.telling.start_generation(50)
    (delta,) = agent.updates(0.2)
    assert isinstance(delta, Delta)
    assert (delta.generation, delta.sequence, delta.added) == (101, 0, b""), "a generation only grows"


def test_blooms_while_something_changes() -> None:
    agent = Agent()
    agent.telling.record_request(BLOOM, 0.0)
    assert kinds(agent.updates(0.0)) == ["PrefixBloom"]
    agent.store(1)
    assert agent.updates(BLOOM_INTERVAL_S - 0.1) == []
    (bloom,) = agent.updates(BLOOM_INTERVAL_S)
    assert isinstance(bloom, PrefixBloom) and bloom.names == 1
    assert agent.updates(BLOOM_INTERVAL_S * 2) == [], "it still says the same"
