"""Secrets of an installation: existing ones are kept; missing ones are created, copied or requested."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.cli.cluster.access import MODELS, SYSTEM
from functions.cli.cluster.secret_plan import FOLLOWERS, KINDS, Turn, Where, plan, rotated_content
from functions.fleet.role_credentials import CredentialsUnusable
from tests.docs.pages import ROOT
from tests.manifests.checks.references import documented_secrets

_OPTIONAL = ("git-token", "git-webhook-secret", "regions-token")
WORDS = ("read-s3", "registry-s3", "gateway-s3", "database-password", *_OPTIONAL)
GIVEN = {word: word.encode() for word in WORDS}
There = dict[Where, dict[str, bytes]]


def planned(there: There, given: dict[str, bytes] | None = None) -> dict[Where, tuple[str, bytes]]:
    random = (f"random-{number}".encode() for number in itertools.count())
    steps = plan(there, GIVEN if given is None else given, random.__next__)
    return {(step.namespace, step.name): (step.do, step.value) for step in steps}


def after(there: There, given: dict[str, bytes] | None = None) -> There:
    made = {place: value for place, (_, value) in planned(there, given).items() if value}
    keys = {place: kind.key for kind in KINDS for place in kind.places}
    keys |= {each.place: each.key for each in FOLLOWERS}
    return there | {place: {keys[place]: value} for place, value in made.items()}


def test_these_are_the_secrets_that_the_manifests_want() -> None:
    """The tenants' own Secret is excluded: its keys are up to the operator."""
    wanted = {(namespace, name, key) for namespace, name, key in documented_secrets() if "<" not in key}
    made = {(namespace, kind.name, kind.key) for kind in KINDS for namespace in kind.namespaces}
    assert made | {(*each.place, each.key) for each in FOLLOWERS} == wanted


def test_the_installation_page_shows_what_an_empty_cluster_gets() -> None:
    """The page lists every Secret on a line, as `shoal secrets` prints them."""
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    shown = re.findall(r"^(shoal(?:-models)?) +(shoal-[a-z0-9-]+) +(made(?: from the file)?)$", page, re.MULTILINE)
    words = {"make": "made", "give": "made from the file"}
    offered = dict.fromkeys(("read-s3", "registry-s3", "gateway-s3", "database-password"), b"x")
    assert shown == [(*place, words[do]) for place, (do, _) in planned({}, offered).items()]
    assert f"`kept` {len(shown)} times" in page


def test_into_an_empty_cluster_goes_everything_and_both_namespaces_agree() -> None:
    made = planned({})
    assert {do for do, _ in made.values()} == {"make", "give"}
    assert made[SYSTEM, "shoal-s3"][1] == made[MODELS, "shoal-s3"][1] != b""
    random = [made[SYSTEM, name][1] for name in ("shoal-internal-token", "shoal-bus-password", "shoal-pepper")]
    assert len(set(random)) == 3
    assert made[SYSTEM, "shoal-git"] == ("give", b"git-token")


def test_a_second_call_does_nothing() -> None:
    again = planned(after({}))
    assert {do for do, _ in again.values()} == {"keep"}


def test_secrets_not_supplied_are_requested_and_the_rest_created() -> None:
    made = planned({}, {})
    assert made[SYSTEM, "shoal-registry-s3"] == ("miss", b"")
    assert made[SYSTEM, "shoal-pepper"][0] == "make"
    assert (SYSTEM, "shoal-git") not in made, "without the git source it is no Secret of this installation"


def test_a_missing_copy_is_a_copy_and_a_pepper_from_elsewhere_is_taken() -> None:
    there = after({})
    del there[MODELS, "shoal-s3"]
    assert planned(there)[MODELS, "shoal-s3"] == ("copy", there[SYSTEM, "shoal-s3"]["s3.json"])
    assert planned({}, {"pepper": b"of another region"})[SYSTEM, "shoal-pepper"] == ("give", b"of another region")


def test_copies_that_differ_and_secrets_without_their_key_are_left_to_a_person() -> None:
    there = after({})
    there[MODELS, "shoal-s3"] = {"s3.json": b"another"}
    there[SYSTEM, "shoal-pepper"] = {"peper": b"x"}
    steps = {(step.namespace, step.name): step for step in plan(there, GIVEN, lambda: b"random")}
    assert "the copies of both namespaces differ" in steps[SYSTEM, "shoal-s3"].words
    assert "it has no key pepper" in steps[SYSTEM, "shoal-pepper"].words
    assert not [step for step in steps.values() if step.value]


def test_a_file_that_differs_from_what_exists_is_not_used_and_that_is_said() -> None:
    steps = plan(after({}), GIVEN | {"gateway-s3": b"another"}, lambda: b"random")
    (told,) = [step for step in steps if step.words]
    assert (told.do, told.name) == ("keep", "shoal-gateway-s3")
    assert "--gateway-s3 differs and is not used" in told.words


def test_no_content_shows_in_what_may_be_logged() -> None:
    assert "random" not in str(plan({}, GIVEN, lambda: b"random"))


def test_admin_secrets_stay_out_of_engine_namespaces_and_derived_ones() -> None:
    made = planned({})
    token, password = made[SYSTEM, "shoal-internal-token"][1], made[SYSTEM, "shoal-bus-password"][1]
    for place, (_, value) in made.items():
        if place not in ((SYSTEM, "shoal-internal-token"), (SYSTEM, "shoal-bus-password")):
            assert token not in value and password not in value, place


def test_what_follows_is_written_anew_with_what_it_follows_from() -> None:
    there = after({})
    there[SYSTEM, "shoal-internal-token"] = {"internal-token": b"another"}
    renewed = {place for place, (do, _) in planned(there).items() if do == "renew"}
    assert renewed == {each.place for each in FOLLOWERS if each.of[0] == "shoal-internal-token"}


def test_an_installation_of_before_gets_what_follows_and_is_told_what_agents_need_no_more() -> None:
    there = after({})
    for each in FOLLOWERS:
        del there[each.place]
    for name in ("shoal-internal-token", "shoal-bus-password"):
        there[MODELS, name] = there[SYSTEM, name]
    first = planned(there)
    assert {first[each.place][0] for each in FOLLOWERS} == {"make"}
    assert (MODELS, "shoal-internal-token") not in first, "agents have nothing else yet"
    again = planned(after(there))
    assert again[MODELS, "shoal-internal-token"][0] == again[MODELS, "shoal-bus-password"][0] == "unused"


def test_the_token_is_turned_in_three_steps_that_cannot_be_mixed_up() -> None:
    added = rotated_content(b"old\n", "add", b"new")
    shown = rotated_content(added, "show", b"other")
    assert (added, shown, rotated_content(shown, "drop", b"other")) == (b"old\nnew", b"new\nold", b"new")
    assert rotated_content(shown, "show", b"other") == added, "back"
    wrong: list[tuple[bytes, Turn]] = [(added, "add"), (b"old", "show"), (b"old", "drop"), (b"", "add")]
    for content, step in wrong:
        with pytest.raises(CredentialsUnusable):
            rotated_content(content, step, b"new")


@pytest.mark.parametrize("give", [True, False])
@given(st.sets(st.sampled_from(sorted(place for kind in KINDS for place in kind.places))))
def test_whatever_is_there_stays_and_a_second_call_only_keeps(give: bool, present: set[Where]) -> None:
    whole = after({})
    there = {place: whole[place] for place in present}
    offered = GIVEN if give else {}
    made = after(there, offered)
    assert {place: made[place] for place in present} == there
    assert {do for do, _ in planned(made, offered).values()} <= {"keep", "miss"}
    assert not give or made.keys() == whole.keys()
