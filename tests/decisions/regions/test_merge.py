"""Merge of model facts between regions: the later fact wins, contradictions change nothing, and all regions
converge.
"""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.decisions.regions.facts import ChannelFact, KeyFact, ModelFacts, VersionFact
from functions.decisions.regions.merge import Held, Taken, is_later_policy, merge, merge_key

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def version(name: str, since: float, *, deleted: bool = False, digest: str = A) -> VersionFact:
    return VersionFact(name, digest, "", deleted, since)


def model(
    *versions: VersionFact,
    deleted: bool = False,
    base: str = "base",
    policy: tuple[str, float] = ("default", 0.0),
    **channels: tuple[str | None, float],
) -> ModelFacts:
    facts = tuple(ChannelFact(name, to, since) for name, (to, since) in sorted(channels.items()))
    return ModelFacts("acme/bot", base, policy[0], deleted, versions, facts, policy[1])


def test_worked_example() -> None:
    ours = model(version("v1", 10), stable=("v1", 10))
    theirs = model(version("v1", 10), version("v2", 20), stable=("v2", 20))
    taken = merge(ours, theirs)
    assert [each.name for each in taken.versions] == ["v2"]
    assert taken.channels == (ChannelFact("stable", "v2", 20),)
    moved_since = model(version("v1", 10), stable=("v1", 25))
    assert merge(moved_since, theirs) == Taken(versions=(version("v2", 20),))


def test_empty_region_takes_all_facts_and_an_equal_one_takes_none() -> None:
    theirs = model(version("v1", 10), version("v0", 9, deleted=True), stable=("v1", 10), old=(None, 9))
    taken = merge(None, theirs)
    assert taken.versions == (version("v1", 10),) and taken.gone == (version("v0", 9, deleted=True),)
    assert {each.name: each.version for each in taken.channels} == {"stable": "v1", "old": None}
    assert not merge(theirs, theirs)


def test_version_name_with_other_content_is_held_and_its_channel_stays() -> None:
    ours = model(version("v1", 10, digest=A), version("v2", 11, digest=A), stable=("v1", 10))
    theirs = model(version("v1", 10, digest=A), version("v2", 12, digest=B), stable=("v2", 12))
    taken = merge(ours, theirs)
    assert [each.code for each in taken.held] == ["version_taken"]
    assert not taken


def test_another_base_is_held() -> None:
    taken = merge(model(version("v1", 10)), model(version("v2", 11), base="other"))
    assert [each.code for each in taken.held] == ["base_differs"] and not taken
    assert merge(model(version("v1", 10, deleted=True), deleted=True), model(version("v2", 11), base="other")).versions


def test_version_named_by_a_local_channel_is_kept() -> None:
    ours = model(version("v1", 10), stable=("v1", 10))
    taken = merge(ours, model(version("v1", 12, deleted=True)))
    assert taken.gone == () and taken.kept == (version("v1", 10),)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_theirs"),
    [
        (("default", 10), ("careful", 20), True),
        (("default", 20), ("careful", 10), False),
        (("default", 10), ("careful", 10), False),  # at equal times, the name that sorts later wins
        (("careful", 10), ("default", 10), True),
        (("careful", 0), ("default", 0), False),  # from registries that stored no such times
        (("careful", 10), ("default", 0), False),
        (("careful", 0), ("default", 10), True),
    ],
)
def test_policy_named_later_wins(ours: tuple[str, float], theirs: tuple[str, float], is_theirs: bool) -> None:
    taken = merge(model(version("v1", 10), policy=ours), model(version("v1", 10), policy=theirs))
    assert taken == Taken(policy=is_theirs)


def test_model_ends_once_nothing_of_it_is_left() -> None:
    ours = model(version("v1", 10), stable=("v1", 10))
    theirs = model(version("v1", 12, deleted=True), deleted=True, stable=(None, 12))
    taken = merge(ours, theirs)
    assert taken.model_ends and taken.gone == (version("v1", 12, deleted=True),)
    assert not merge(model(version("v1", 10), version("v3", 11), stable=("v1", 10)), theirs).model_ends


KEY = KeyFact("ci", "acme", "0" * 64, ("inference",), "interactive", None, revoked=False, limits=None)


def test_a_revoked_key_never_comes_back() -> None:
    revoked = msgspec.structs.replace(KEY, revoked=True)
    assert merge_key(None, KEY) == KEY and merge_key(KEY, KEY) is None
    assert merge_key(KEY, revoked) == revoked
    assert merge_key(revoked, KEY) is None
    other = merge_key(KEY, msgspec.structs.replace(KEY, hmac_sha256="1" * 64))
    assert isinstance(other, Held) and other.code == "key_differs"


# All regions converge: each makes its own changes and merges those of the others in any order, any number of times.


@dataclass
class Region:
    """Rows of a registry, changed as its functions change them."""

    versions: dict[str, VersionFact] = field(default_factory=dict)
    channels: dict[str, ChannelFact] = field(default_factory=dict)
    deleted: bool = True
    policy: tuple[str, float] = ("default", 0.0)

    def facts(self) -> ModelFacts:
        versions = tuple(self.versions[name] for name in sorted(self.versions))
        channels = tuple(self.channels[name] for name in sorted(self.channels))
        return ModelFacts("acme/bot", "base", self.policy[0], self.deleted, versions, channels, self.policy[1])

    def act(self, verb: str, name: str, now: float) -> None:
        named = {channel.version for channel in self.channels.values()}
        mine = self.versions.get(name)
        now = max(now, mine.since_unix_s + 0.001 if mine is not None else now)
        if verb == "put" and (mine is None or mine.deleted):
            if self.deleted:
                self.policy = ("default", max(now, self.policy[1] + 0.001))
            self.versions[name], self.deleted = version(name, now), False
        elif verb == "delete" and mine is not None and not mine.deleted and name not in named:
            self.versions[name] = version(name, now, deleted=True)
        elif verb == "promote" and mine is not None and not mine.deleted:
            self._move(name, now)
        elif verb == "end" and self.channels.get("stable") is not None:
            self._move(None, now)
        elif verb == "policy" and not self.deleted and self.policy[0] != name:
            self.policy = (name, max(now, self.policy[1] + 0.001))

    def _move(self, to: str | None, now: float) -> None:
        before = self.channels.get("stable")
        if before is None or before.version != to:
            since = now if before is None else max(now, before.since_unix_s + 0.001)
            self.channels["stable"] = ChannelFact("stable", to, since)

    def merge_facts(self, theirs: ModelFacts, now: float) -> bool:
        ours = self.facts() if self.versions else None
        taken = merge(ours, theirs)
        for fact in (*taken.versions, *taken.gone):
            self.versions[fact.name] = fact
        for channel in taken.channels:
            self.channels[channel.name] = channel
        for fact in taken.kept:
            self.versions[fact.name] = version(fact.name, now)
        if ours is None or (taken.versions and self.deleted and is_later_policy(ours, theirs)) or taken.policy:
            self.policy = (theirs.rollout, theirs.rollout_since_unix_s)
        self.deleted = taken.model_ends or (self.deleted and not taken.versions)
        return bool(taken)


Acts = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["put", "delete", "promote", "end", "policy"]),
    st.sampled_from(["v1", "v2", "v3"]),
)
Hears = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(
    st.lists(st.one_of(Acts, Hears), max_size=30),
    st.permutations([(a, b) for a in range(3) for b in range(3) if a != b]),
)
@settings(max_examples=300)
def test_regions_converge_in_any_merge_order(steps: list[tuple], order: list[tuple[int, int]]) -> None:
    regions = [Region() for _ in range(3)]
    now = 100.0
    for step in steps:
        now += 1.0
        if len(step) == 3:
            regions[step[0]].act(step[1], step[2], now)
        elif step[0] != step[1] and regions[step[1]].versions:
            regions[step[0]].merge_facts(regions[step[1]].facts(), now)
    for _ in range(10):
        now += 1.0
        heard = [regions[to].merge_facts(regions[of].facts(), now) for to, of in order if regions[of].versions]
        if not any(heard):
            break
    else:
        raise AssertionError("they go on telling each other news")
    first = regions[0].facts()
    for region in regions[1:]:
        assert (region.facts().versions, region.facts().channels) == (first.versions, first.channels)
        assert region.policy == regions[0].policy
    named = {channel.version for channel in first.channels if channel.version is not None}
    assert named <= {each.name for each in first.versions if not each.deleted}
