"""Secrets of an installation: what exists is kept, what is missing made, copied, or asked for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.cli.cluster.access import MODELS, SYSTEM
from functions.cli.cluster.secret_plan import CREDENTIALS_KEY, KINDS, ROLE_SECRETS, Where, plan
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
    keys |= dict.fromkeys(ROLE_SECRETS.values(), CREDENTIALS_KEY)
    return there | {place: {keys[place]: value} for place, value in made.items()}


def test_these_are_the_secrets_that_the_manifests_want() -> None:
    """But for the tenants' own: how many keys that one has, and which, is theirs to say."""
    wanted = {(namespace, name, key) for namespace, name, key in documented_secrets() if "<" not in key}
    made = {(namespace, kind.name, kind.key) for kind in KINDS for namespace in kind.namespaces}
    assert made | {(*where, CREDENTIALS_KEY) for where in ROLE_SECRETS.values()} == wanted


def test_into_an_empty_cluster_goes_everything_and_both_namespaces_agree() -> None:
    made = planned({})
    assert {do for do, _ in made.values()} == {"make", "give"}
    for name in ("shoal-bus-password", "shoal-s3"):
        assert made[SYSTEM, name][1] == made[MODELS, name][1] != b""
    random = [made[SYSTEM, name][1] for name in ("shoal-internal-token", "shoal-bus-password", "shoal-pepper")]
    assert len(set(random)) == 3
    assert made[SYSTEM, "shoal-git"] == ("give", b"git-token")


def test_a_second_call_does_nothing() -> None:
    again = planned(after({}))
    assert {do for do, _ in again.values()} == {"keep"}


def test_what_nobody_gives_is_asked_for_and_the_rest_is_made() -> None:
    made = planned({}, {})
    assert made[SYSTEM, "shoal-registry-s3"] == ("miss", b"")
    assert made[SYSTEM, "shoal-pepper"][0] == "make"
    assert (SYSTEM, "shoal-git") not in made, "without the git source it is no Secret of this installation"


def test_a_missing_copy_is_a_copy_and_a_pepper_from_elsewhere_is_taken() -> None:
    there = after({})
    del there[MODELS, "shoal-bus-password"]
    assert planned(there)[MODELS, "shoal-bus-password"] == ("copy", there[SYSTEM, "shoal-bus-password"]["bus-password"])
    assert planned({}, {"pepper": b"of another region"})[SYSTEM, "shoal-pepper"] == ("give", b"of another region")


def test_copies_that_differ_and_secrets_without_their_key_are_left_to_a_person() -> None:
    there = after({})
    there[MODELS, "shoal-bus-password"] = {"bus-password": b"another"}
    there[SYSTEM, "shoal-pepper"] = {"peper": b"x"}
    steps = {(step.namespace, step.name): step for step in plan(there, GIVEN, lambda: b"random")}
    assert "the copies of both namespaces differ" in steps[SYSTEM, "shoal-bus-password"].words
    assert "it has no key pepper" in steps[SYSTEM, "shoal-pepper"].words
    assert not [step for step in steps.values() if step.value]


def test_a_file_that_differs_from_what_exists_is_not_used_and_that_is_said() -> None:
    steps = plan(after({}), GIVEN | {"gateway-s3": b"another"}, lambda: b"random")
    (told,) = [step for step in steps if step.words]
    assert (told.do, told.name) == ("keep", "shoal-gateway-s3")
    assert "--gateway-s3 differs and is not used" in told.words


def test_no_content_shows_in_what_may_be_logged() -> None:
    assert "random" not in str(plan({}, GIVEN, lambda: b"random"))


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
