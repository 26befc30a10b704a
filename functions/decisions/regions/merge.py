"""Taking over what another region knows: which of its facts are later than ours, and which contradict them.

    a version     made, deleted or made again: the later holds; of the same moment, that it is deleted
    a channel     moved or taken away: the later holds; of the same moment, the name that sorts later
    a policy      named as the model's RolloutPolicy: likewise
    a key         new: taken; revoked: for good

A version that a channel here names does not go: it is there anew from now on, and is told so (`kept`).

Whoever takes a fact over keeps its time, so all regions end alike in whatever order they hear
(test_regions_end_alike_in_whatever_order_they_hear). What contradicts is held and changes nothing: a version never
comes to mean other content, nor a key another secret. Order: what is there before what names it, and that before what
goes.

Worked example (test_worked_example): we have v1 on stable since 10, they v1 and v2, stable on v2 since 20: v2 is taken,
then stable is moved. Had we moved stable since 25, only v2 were taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.decisions.regions.facts import ChannelFact, KeyFact, ModelFacts, VersionFact


@dataclass(frozen=True, slots=True)
class Held:
    """A fact that contradicts ours; a person has to say which of them is meant."""

    subject: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Steps in their order. `model_ends`: nothing of the model is left, there nor here."""

    versions: tuple[VersionFact, ...] = ()  # made there, to be made here
    channels: tuple[ChannelFact, ...] = ()
    gone: tuple[VersionFact, ...] = ()
    kept: tuple[VersionFact, ...] = ()  # deleted there, in use here: ours, to be there anew
    policy: bool = False  # theirs is the model's from now on, before channels move by it
    model_ends: bool = False
    held: tuple[Held, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.versions or self.channels or self.gone or self.kept or self.policy or self.model_ends)


def merge(ours: ModelFacts | None, theirs: ModelFacts) -> Taken:
    known = {version.name: version for version in ours.versions} if ours is not None else {}
    if ours is not None and ours.base != theirs.base and any(not version.deleted for version in known.values()):
        message = f"{theirs.id} is an adapter of {ours.base} here and of {theirs.base} there: delete one of them"
        return Taken(held=(Held(theirs.id, "base_differs", message),))
    held: list[Held] = []
    versions: list[VersionFact] = []
    gone: list[VersionFact] = []
    for fact in sorted(theirs.versions, key=lambda fact: fact.name):
        mine = known.get(fact.name)
        if mine is not None and mine.digest != fact.digest:
            held.append(_other_content(theirs.id, mine, fact))
        elif mine is None or _at(fact) > _at(mine):
            (gone if fact.deleted else versions).append(fact)
    there = _alive(known | {fact.name: fact for fact in versions}, held)
    channels = _channels(ours, theirs, there)
    named = _named(ours, channels)
    kept = tuple(known[fact.name] for fact in gone if fact.name in named)
    gone = [fact for fact in gone if fact.name not in named]
    left = there - {fact.name for fact in gone}
    model_ends = theirs.deleted and ours is not None and not ours.deleted and not left and not named
    policy = ours is not None and is_later_policy(ours, theirs)
    return Taken(tuple(versions), channels, tuple(gone), kept, policy, model_ends, tuple(held))


def is_later_policy(ours: ModelFacts, theirs: ModelFacts) -> bool:
    """Whether theirs holds. What was named before such times were kept stays what it is in each region."""
    if not theirs.rollout_since_unix_s:
        return False
    return (theirs.rollout_since_unix_s, theirs.rollout) > (ours.rollout_since_unix_s, ours.rollout)


def merge_key(ours: KeyFact | None, theirs: KeyFact) -> KeyFact | Held | None:
    """The key to have from now on; None where nothing changes."""
    if ours is None:
        return theirs
    if (ours.tenant, ours.hmac_sha256) != (theirs.tenant, theirs.hmac_sha256):
        message = f"the key {theirs.id} is another one there: revoke both, and make one with an id of its own"
        return Held(theirs.id, "key_differs", message)
    return theirs if theirs.revoked and not ours.revoked else None


def _channels(ours: ModelFacts | None, theirs: ModelFacts, there: frozenset[str]) -> tuple[ChannelFact, ...]:
    """Those that theirs moved later. One that names what is not here waits: the fact comes again with what it names."""
    known = {channel.name: channel for channel in ours.channels} if ours is not None else {}
    later = []
    for fact in sorted(theirs.channels, key=lambda fact: fact.name):
        mine = known.get(fact.name)
        if mine is not None and _moved(fact) <= _moved(mine):
            continue
        if fact.version is None or fact.version in there:
            later.append(fact)
    return tuple(later)


def _alive(versions: Mapping[str, VersionFact], held: Iterable[Held]) -> frozenset[str]:
    contested = {each.subject.rpartition("@")[2] for each in held}
    return frozenset(name for name, version in versions.items() if not version.deleted and name not in contested)


def _named(ours: ModelFacts | None, moved: tuple[ChannelFact, ...]) -> set[str]:
    """Versions that channels name once these have moved."""
    known = {channel.name: channel for channel in ours.channels} if ours is not None else {}
    after = known | {channel.name: channel for channel in moved}
    return {channel.version for channel in after.values() if channel.version is not None}


def _at(fact: VersionFact) -> tuple[float, bool]:
    return fact.since_unix_s, fact.deleted


def _moved(fact: ChannelFact) -> tuple[float, str]:
    return fact.since_unix_s, fact.version or ""


def _other_content(model: str, mine: VersionFact, theirs: VersionFact) -> Held:
    message = f"{model}@{theirs.name} is {mine.digest} here and {theirs.digest} there: give one of them a new name"
    return Held(f"{model}@{theirs.name}", "version_taken", message)
