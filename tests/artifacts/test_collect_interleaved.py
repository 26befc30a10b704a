"""Ingests and the garbage collector, split into single steps and interleaved in every order that hypothesis finds.

    law 1  each named artifact, and each target of a pointer, is whole in the store at every moment
    law 2  objects that an open, unexpired ingest has put or found in the store stay there
    law 3  when all actors have finished, the store holds exactly the reachable objects

Actors are killed between any two steps; the clock jumps, so that sessions expire under ingests that still run. The
collector is the real one (`collect.steps`). An ingest repeats the steps of `Ingest`. A publisher without a ledger
repeats those of `publish_directory`: the target of its pointer is whole once it has ended, however often it was killed
and run again. Hypothesis finds short counterexamples; long walks from fixed seeds go deeper. Each guard that the laws
rest on was removed once, and the walks failed each time.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from functions.api.ids import Digest
from functions.artifacts.collect import steps
from functions.artifacts.ingest.ingest import object_keys
from functions.artifacts.locations import SWEEPING_KEY, manifest_key
from functions.artifacts.manifest import MANIFEST_NAME, hex_of
from tests.artifacts.gc_ledger import FileLedger
from tests.artifacts.memory_store import MemoryStore
from tests.artifacts.small_artifacts import SmallArtifact, artifact
from tests.soak import sampled

ARTIFACTS = (artifact("a"), artifact("a", "b"))
BY_DIGEST = {made.digest: made for made in ARTIFACTS}
SESSION_S = 50.0
MAX_ACTORS = 3


class Actor:
    """One running ingest or registration."""

    def __init__(self, steps_of: Iterator[None]) -> None:
        self.steps = steps_of
        self.session = ""
        self.relies_on: set[str] = set()
        self.publishes: SmallArtifact | None = None


class Interleaved(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.ledger = FileLedger(":memory:")
        self.named: set[Digest] = set()
        self.actors: list[Actor] = []
        self.collector: Iterator[object] | None = None
        self.now_s = 1000.0
        self.grace_s = 0.0

    @initialize(left=st.sets(st.sampled_from(ARTIFACTS)), marked=st.booleans(), grace_s=st.sampled_from([0.0, 20.0]))
    def garbage_of_earlier_days(self, left: set[SmallArtifact], marked: bool, grace_s: float) -> None:
        for made in left:
            self.store.objects.update(made.objects)
        if marked:
            self.ledger.mark(frozenset(self.store.objects), self.now_s - 100.0)
        self.grace_s = grace_s

    # Possible next steps.

    @precondition(lambda self: len(self.actors) < MAX_ACTORS)
    @rule(made=st.sampled_from(ARTIFACTS), pointed=st.booleans())
    def ingest_begins(self, made: SmallArtifact, pointed: bool) -> None:
        self._start(lambda actor: self._ingest(actor, made, pointed))

    @precondition(lambda self: len(self.actors) < MAX_ACTORS)
    @rule(made=st.sampled_from(ARTIFACTS))
    def naming_begins(self, made: SmallArtifact) -> None:
        self._start(lambda actor: self._name(actor, made))

    @precondition(lambda self: len(self.actors) < MAX_ACTORS)
    @rule(made=st.sampled_from(ARTIFACTS))
    def publishing_begins(self, made: SmallArtifact) -> None:
        self._start(lambda actor: self._publish(made))
        self.actors[-1].publishes = made

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, MAX_ACTORS - 1), count=st.integers(1, 6))
    def an_actor_goes_on(self, which: int, count: int) -> None:
        actor = self.actors[which % len(self.actors)]
        for _ in range(count):
            if next(actor.steps, "ended") == "ended":
                self.actors.remove(actor)
                return

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, MAX_ACTORS - 1))
    def an_actor_is_killed(self, which: int) -> None:
        actor = self.actors[which % len(self.actors)]
        if actor.publishes is None:
            self.actors.remove(actor)
        else:
            actor.steps = self._publish(actor.publishes)

    @rule(count=st.integers(1, 6))
    def the_collector_goes_on(self, count: int) -> None:
        for _ in range(count):
            if self.collector is None:
                self.collector = self._collector()
            if next(self.collector, "ended") == "ended":
                self.collector = None

    @rule()
    def the_collector_is_killed(self) -> None:
        self.collector = None

    @precondition(lambda self: self.named)
    @rule(which=st.integers(0, 3))
    def something_is_named_no_more(self, which: int) -> None:
        self.named.discard(sorted(self.named)[which % len(self.named)])

    @rule(made=st.sampled_from(ARTIFACTS))
    def a_pointer_is_removed(self, made: SmallArtifact) -> None:
        self.store.delete([pointer_key(made)])

    @rule(passed_s=st.sampled_from([1.0, 20.0, SESSION_S]))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s

    # The laws.

    @invariant()
    def what_is_named_is_whole(self) -> None:
        for digest in self.named:
            assert BY_DIGEST[digest].objects.items() <= self.store.objects.items()

    @invariant()
    def what_is_pointed_at_is_whole(self) -> None:
        unfinished = {actor.publishes for actor in self.actors}
        for made in ARTIFACTS:
            if pointer_key(made) in self.store.objects and made not in unfinished:
                assert made.objects.items() <= self.store.objects.items()

    @invariant()
    def what_an_open_ingest_relies_on_stays(self) -> None:
        still_open = self.ledger.open_ingests()
        for actor in self.actors:
            if actor.session in still_open:
                assert actor.relies_on <= self.store.objects.keys()

    def teardown(self) -> None:
        for _ in self.collector or ():
            pass
        for _ in self._collector():  # finish a sweep that was killed
            pass
        for actor in self.actors:
            if actor.publishes is not None:
                assert len([*actor.steps]) < 100
        self.actors.clear()
        self.what_is_pointed_at_is_whole()
        for _ in range(3):  # the interrupted pass, one that marks, one that deletes
            for _ in self.collector or ():
                pass
            self.now_s += SESSION_S + self.grace_s
            self.collector = self._collector()
        for _ in self.collector or ():
            pass
        pointed = {made.digest for made in ARTIFACTS if pointer_key(made) in self.store.objects}
        pointers = {pointer_key(made) for made in ARTIFACTS}
        reachable = {key for digest in self.named | pointed for key in BY_DIGEST[digest].objects}
        assert self.store.objects.keys() - pointers == reachable
        assert self.ledger.candidates() == frozenset()

    # The actors, one `yield` wherever another process may act.

    def _start(self, run: "object") -> None:
        actor = Actor(iter(()))
        actor.steps = run(actor)
        self.actors.append(actor)

    def _ingest(self, actor: Actor, made: SmallArtifact, pointed: bool) -> Iterator[None]:
        session = self.ledger.begin_ingest(self.now_s, self.now_s + SESSION_S)
        actor.session = session
        yield
        while self.ledger.unmark(object_keys(made.digest, made.manifest)):
            yield
        yield
        for key, content in made.objects.items():  # chunks first, the manifest last
            found = self.store.size_of(key)
            if found is not None:
                actor.relies_on.add(key)
            yield
            if found is None:
                self.store.put_new(key, content)
                actor.relies_on.add(key)
                yield
        if pointed and session in self.ledger.open_ingests():
            # Pointers are written within the session, whose owner knows its remaining time.
            self.store.put(pointer_key(made), made.document)
            yield
        self.ledger.end_ingest(session)

    def _publish(self, made: SmallArtifact) -> Iterator[None]:
        yield from self._put(made)
        self.store.put(pointer_key(made), made.document)
        yield
        while self.store.size_of(SWEEPING_KEY) is not None:
            yield
        yield
        yield from self._put(made)

    def _put(self, made: SmallArtifact) -> Iterator[None]:
        for key, content in made.objects.items():
            found = self.store.size_of(key)
            yield
            if found is None:
                self.store.put_new(key, content)
                yield

    def _name(self, actor: Actor, made: SmallArtifact) -> Iterator[None]:
        session = self.ledger.begin_ingest(self.now_s, self.now_s + SESSION_S)
        actor.session = session
        yield
        keys = object_keys(made.digest, made.manifest)
        if manifest_key(hex_of(made.digest)) in self.store.objects:
            yield
            while self.ledger.unmark(keys):
                yield
            yield
            whole = True
            for key in keys:
                whole = whole and self.store.size_of(key) is not None
                yield
            # One transaction: unmark again, and name unless something is being deleted or the session is over.
            if whole and not self.ledger.unmark(keys) and session in self.ledger.open_ingests():
                self.named.add(made.digest)
            yield
        self.ledger.end_ingest(session)

    def _collector(self) -> Iterator[object]:
        return steps(self.store, lambda: set(self.named), self.ledger, now_unix_s=self.now_s, grace_s=self.grace_s)


def pointer_key(made: SmallArtifact) -> str:
    return f"acme/{hex_of(made.digest)[:8]}/{MANIFEST_NAME}"


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


WALKS = 600
WALK_STEPS = 120


@pytest.mark.parametrize("part", sampled(range(4), keep=[0]))
def test_long_walks_keep_the_laws(part: int) -> None:
    for seed in range(part * WALKS // 4, (part + 1) * WALKS // 4):
        _walk(random.Random(seed))


def _walk(chance: random.Random) -> None:
    rig = Interleaved()
    left = {made for made in ARTIFACTS if chance.random() < 0.7}
    Interleaved.garbage_of_earlier_days(rig, left=left, marked=chance.random() < 0.7, grace_s=chance.choice([0, 20]))
    rules = {
        "an actor": 45,
        "the collector": 45,
        "ingest": 4,
        "naming": 8,
        "publishing": 4,
        "unname": 3,
        "time": 2,
        "unpoint": 1,
        "kill an actor": 1,
        "kill the collector": 1,
    }
    for step in chance.choices([*rules], weights=[*rules.values()], k=WALK_STEPS):
        _do(rig, step, chance)
        rig.what_is_named_is_whole()
        rig.what_is_pointed_at_is_whole()
        rig.what_an_open_ingest_relies_on_stays()
    rig.teardown()


def _do(rig: Interleaved, step: str, chance: random.Random) -> None:
    made, which = chance.choice(ARTIFACTS), chance.randrange(MAX_ACTORS)
    room = len(rig.actors) < MAX_ACTORS
    match step:
        case "an actor" if rig.actors:
            rig.an_actor_goes_on(which=which, count=1)
        case "the collector":
            rig.the_collector_goes_on(count=1)
        case "ingest" if room:
            rig.ingest_begins(made=made, pointed=chance.random() < 0.3)
        case "naming" if room:
            rig.naming_begins(made=made)
        case "publishing" if room:
            rig.publishing_begins(made=made)
        case "unname" if rig.named:
            rig.something_is_named_no_more(which=which)
        case "time":
            rig.time_passes(passed_s=chance.choice([1.0, 20.0, SESSION_S]))
        case "unpoint":
            rig.a_pointer_is_removed(made=made)
        case "kill an actor" if rig.actors:
            rig.an_actor_is_killed(which=which)
        case "kill the collector":
            rig.the_collector_is_killed()
