"""Merge of another region's facts: find those that are later than ours, and those that contradict ours.

    a version     created, deleted or created again: the later fact wins; at equal times, the deletion
    a channel     moved or deleted: the later fact wins; at equal times, the name that sorts later
    a policy      named as the model's RolloutPolicy: likewise
    a key         new: added; revoked: for good

A version that a channel here names is not deleted, but counts as created anew, so other regions restore it (`kept`).

A region that adopts a fact keeps the fact's time, so all regions converge whatever the order of messages
(test_regions_converge_in_any_merge_order). A contradiction is held and changes nothing: a version never
gets other content, nor a key another secret. A version comes before the channel that names it, deletions come last.

Worked example (test_worked_example): we have v1 on stable since 10, they v1 and v2, stable on v2 since 20: v2 is added,
then stable is moved. Had we moved stable at 25, only v2 would be added.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from functions.decisions.regions.facts import ChannelFact, KeyFact, ModelFacts, VersionFact


@dataclass(frozen=True, slots=True)
class Held:
    """A fact that contradicts ours; a person has to decide which one is right."""

    subject: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Steps of a merge, in order. `model_ends`: nothing of the model is left here or there."""

    versions: tuple[VersionFact, ...] = ()  # created there, to be created here
    channels: tuple[ChannelFact, ...] = ()
    gone: tuple[VersionFact, ...] = ()
    kept: tuple[VersionFact, ...] = ()  # deleted there, in use here: created there anew
    policy: bool = False  # use their policy from now on, set before channels move by it
    model_ends: bool = False
    held: tuple[Held, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.versions or self.channels or self.gone or self.kept or self.policy or self.model_ends)


def merge(ours: ModelFacts | None, theirs: ModelFacts) -> Taken:
    known = {version.name: version for version in ours.versions} if ours is not None else {}
    if ours is not None and ours.base != theirs.base and any(not version.deleted for version in known.values()):
        bases = f"{ours.base} here and of {theirs.base} in the other region"
        message = f"{theirs.id} is an adapter of {bases}: delete the model in one region"
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
    """Return True if their policy was set later than ours and wins. A policy set before times were stored stays as it
    is in each region."""
    if not theirs.rollout_since_unix_s:
        return False
    return (theirs.rollout_since_unix_s, theirs.rollout) > (ours.rollout_since_unix_s, ours.rollout)


def merge_key(ours: KeyFact | None, theirs: KeyFact) -> KeyFact | Held | None:
    """Return the key to store (theirs, if it is new here or was revoked there), the contradiction, or None if nothing
    changes."""
    if ours is None:
        return theirs
    if (ours.tenant, ours.hmac_sha256) != (theirs.tenant, theirs.hmac_sha256):
        message = f"the key {theirs.id} is a different key in the other region: revoke both and create a new key"
        return Held(theirs.id, "key_differs", message)
    return theirs if theirs.revoked and not ours.revoked else None


def _channels(ours: ModelFacts | None, theirs: ModelFacts, there: frozenset[str]) -> tuple[ChannelFact, ...]:
    """Return the channels that they moved later than we did. A channel waits until its version is here (`there`); its
    fact is sent again."""
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
    """Return the names of the versions that the model's channels name after these moves."""
    known = {channel.name: channel for channel in ours.channels} if ours is not None else {}
    after = known | {channel.name: channel for channel in moved}
    return {channel.version for channel in after.values() if channel.version is not None}


def _at(fact: VersionFact) -> tuple[float, bool]:
    return fact.since_unix_s, fact.deleted


def _moved(fact: ChannelFact) -> tuple[float, str]:
    return fact.since_unix_s, fact.version or ""


def _other_content(model: str, mine: VersionFact, theirs: VersionFact) -> Held:
    name, contents = f"{model}@{theirs.name}", f"{mine.digest} here and {theirs.digest} in the other region"
    return Held(name, "version_taken", f"{name} is {contents}: push one of them under another name")
