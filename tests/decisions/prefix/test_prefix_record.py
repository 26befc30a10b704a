"""prefix_record, compared with an oracle of unlimited memory and with what a replica's cache can hold."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from functions.api.ids import ReplicaId
from functions.decisions.prefix.record import MOST_NAMED, PrefixRecord

BLOCK = 512
R0, R1 = ReplicaId("r0"), ReplicaId("r1")
REPLICAS = [ReplicaId(f"r{number}") for number in range(4)]
# Texts of up to six blocks over an alphabet of three letters: most share a beginning.
WORDS = st.lists(st.sampled_from("abc"), max_size=6).map(tuple)


def chain(words: tuple[str, ...]) -> tuple[int, ...]:
    """A hash for each beginning, as `prefix_blocks` makes them."""
    return tuple(xxh3_64_intdigest("".join(words[: end + 1]).encode()) for end in range(len(words)))


def record(max_blocks: int = 1_000_000, ttl_s: float = 1000.0) -> PrefixRecord:
    return PrefixRecord(max_blocks, ttl_s)


def enter(to: PrefixRecord, words: str, replica: ReplicaId = R0, now_s: float = 0.0) -> None:
    blocks = chain(tuple(words))
    to.record_sent(blocks, replica, len(blocks) * BLOCK, BLOCK, now_s)


def depth(of: PrefixRecord, words: str, replica: ReplicaId = R0, now_s: float = 0.0) -> int:
    return of.match(chain(tuple(words)), now_s).get(replica, 0)


def test_worked_example_of_the_prologue() -> None:
    known = record()
    known.set_capacity(R0, 4000)
    for text in ("aaaa", "bbbbb", "aaaa"):
        enter(known, text)
    assert (depth(known, "aaaa"), depth(known, "bbbbb")) == (4, 5)
    enter(known, "ccccc")
    assert (depth(known, "aaaa"), depth(known, "bbbbb"), depth(known, "ccccc")) == (4, 0, 5)


def test_match_returns_the_depth_of_each_replica() -> None:
    known = record()
    enter(known, "abcab", R0)
    enter(known, "abb", R1)
    assert known.match(chain(tuple("abcaba")), 0.0) == {R0: 5, R1: 2}
    assert known.match(chain(tuple("b")), 0.0) == {}
    assert known.match((), 0.0) == {}


def test_reused_blocks_stay() -> None:
    known = record(max_blocks=8)
    for _ in range(10):
        enter(known, "ab")
        enter(known, "ca")  # fills the young generation every second time
    assert depth(known, "ab") == depth(known, "ca") == 2


def test_blocks_not_sent_for_long_expire() -> None:
    known = record(ttl_s=100.0)
    enter(known, "ab", now_s=10.0)
    assert depth(known, "ab", now_s=59.0) == depth(known, "ab", now_s=109.0) == 2
    assert depth(known, "ab", now_s=110.0) == 0
    enter(known, "ab", now_s=200.0)
    assert depth(known, "ab", now_s=1000.0) == 0, "also where nobody looked in between"


def test_restarted_replica_holds_nothing() -> None:
    known = record()
    enter(known, "ab", R0)
    enter(known, "ab", R1)
    known.forget(R0)
    assert known.match(chain(tuple("ab")), 0.0) == {R1: 2}
    enter(known, "a", R0)
    assert known.match(chain(tuple("ab")), 0.0) == {R0: 1, R1: 2}


def test_member_bits_are_reused() -> None:
    known = record(max_blocks=20)
    for number in range(500):
        replica, blocks = ReplicaId(f"pod-{number}"), tuple(range(number * 6, number * 6 + 6))
        known.record_sent(blocks, replica, 6 * BLOCK, BLOCK, 0.0)
        assert known._members[replica] < 1 << 20, number
        known.forget(replica)


def test_member_bit_is_not_reused_while_blocks_refer_to_it() -> None:
    known = record(ttl_s=100.0)
    enter(known, "abc", R0, now_s=0.0)
    known.forget(R0)
    enter(known, "c", R1, now_s=50.0)  # the young generation has become the old one
    enter(known, "c", ReplicaId("r2"), now_s=51.0)
    assert known.match(chain(tuple("abc")), 51.0) == {}


@given(st.integers(1, 300), st.integers(3, 2**64 - 1))
def test_number_of_named_holders_is_bounded(replicas: int, choice: int) -> None:
    known = record()
    everybody = [ReplicaId(f"r{number}") for number in range(replicas)]
    for replica in everybody:
        known.record_sent((1, 2), replica, 2 * BLOCK, BLOCK, 0.0)
    found = known.match((1, 2, choice), 0.0)
    assert len(found) == min(replicas, MOST_NAMED)
    assert set(found.values()) == {2}
    assert found == known.match((1, 2, choice), 0.0)


def test_named_holders_depend_on_the_chain() -> None:
    known = record()
    for number in range(1000):
        known.record_sent((1,), ReplicaId(f"r{number}"), BLOCK, BLOCK, 0.0)
    named = [frozenset(known.match((1, choice), 0.0)) for choice in range(0, 1000, 50)]
    assert len(set(named)) > 10, "else the same few replicas would draw every request with that beginning"


class AgainstAListOfEverything(RuleBasedStateMachine):
    """An unbounded record holds exactly what was sent, less what was forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.known = record()
        self.sent: dict[ReplicaId, set[tuple[str, ...]]] = defaultdict(set)

    @rule(words=WORDS, replica=st.sampled_from(REPLICAS))
    def enter(self, words: tuple[str, ...], replica: ReplicaId) -> None:
        self.known.record_sent(chain(words), replica, len(words) * BLOCK + 7, BLOCK, 0.0)
        self.sent[replica] |= {words[: end + 1] for end in range(len(words))}

    @rule(replica=st.sampled_from(REPLICAS))
    def forget(self, replica: ReplicaId) -> None:
        self.known.forget(replica)
        self.sent.pop(replica, None)

    @rule(words=WORDS)
    def agree(self, words: tuple[str, ...]) -> None:
        expected = {}
        for replica, beginnings in self.sent.items():
            known = next((end for end in range(len(words), 0, -1) if words[:end] in beginnings), 0)
            if known:
                expected[replica] = known
        assert self.known.match(chain(words), 0.0) == expected


class WithinBounds(RuleBasedStateMachine):
    """With bounds the record holds no more than was sent, than the cache holds and than memory allows, and keeps the
    newest half.
    """

    CAPACITY_BYTES = 6 * BLOCK
    MAX_BLOCKS = 40
    TTL_S = 60.0

    def __init__(self) -> None:
        super().__init__()
        self.known = record(self.MAX_BLOCKS, self.TTL_S)
        for replica in REPLICAS:
            self.known.set_capacity(replica, self.CAPACITY_BYTES)
        self.now_s = 0.0
        self.sent: list[tuple[float, ReplicaId, tuple[str, ...]]] = []
        self.newest: tuple[float, ReplicaId, tuple[str, ...]] | None = None

    @rule(words=WORDS, replica=st.sampled_from(REPLICAS))
    def enter(self, words: tuple[str, ...], replica: ReplicaId) -> None:
        self.known.record_sent(chain(words), replica, len(words) * BLOCK, BLOCK, self.now_s)
        self.newest = (self.now_s, replica, words)
        self.sent.append(self.newest)

    @rule(seconds=st.sampled_from([1.0, 20.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(replica=st.sampled_from(REPLICAS))
    def forget(self, replica: ReplicaId) -> None:
        self.known.forget(replica)
        self.known.set_capacity(replica, self.CAPACITY_BYTES)
        self.sent = [entry for entry in self.sent if entry[1] != replica]
        self.newest = None

    @rule(words=WORDS)
    def never_more_than_was_sent_within_the_time(self, words: tuple[str, ...]) -> None:
        for replica, blocks in self.known.match(chain(words), self.now_s).items():
            assert any(
                to == replica and then[:blocks] == words[:blocks] and self.now_s - at_s < self.TTL_S
                for at_s, to, then in self.sent
            )

    @precondition(lambda self: self.newest)
    @rule()
    def the_newest_is_known(self) -> None:
        assert self.newest is not None
        at_s, replica, words = self.newest
        if self.now_s - at_s < self.TTL_S / 2 and words:
            assert self.known.match(chain(words), self.now_s).get(replica) == len(words)

    @invariant()
    def no_replica_has_much_more_than_it_can_hold(self) -> None:
        beginnings = {words[: end + 1] for _, _, words in self.sent for end in range(len(words))}
        held: dict[ReplicaId, int] = defaultdict(int)
        for words in beginnings:
            for replica, blocks in self.known.match(chain(words), self.now_s).items():
                held[replica] += blocks == len(words)
        assert all(blocks * BLOCK <= 2 * self.CAPACITY_BYTES + 12 * BLOCK for blocks in held.values())

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.known) <= 2 * self.MAX_BLOCKS


_STATEFUL = settings(max_examples=60, stateful_step_count=30)
test_agrees_with_a_list_of_everything_that_was_sent = AgainstAListOfEverything.TestCase
test_agrees_with_a_list_of_everything_that_was_sent.settings = _STATEFUL
test_no_replica_is_credited_with_much_more_than_it_can_hold = WithinBounds.TestCase
test_no_replica_is_credited_with_much_more_than_it_can_hold.settings = _STATEFUL
