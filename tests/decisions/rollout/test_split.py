"""Assignment of requests to rollout groups: the same in every gateway, and reversed only by a rollback."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, EngineName, ModelId, PoolName, RolloutId, TenantId
from functions.decisions.catalogue import ResolvedModel, Split
from functions.decisions.rollout.split import Choice, bucket_of, choose

ROLLOUT, ACME = RolloutId("ro-pxqrecv55wvliu7b"), TenantId("acme")
V2 = ResolvedModel(
    requested="acme/bot",
    id=ModelId("acme/bot"),
    version="v2",
    digest=Digest("sha256:" + "2" * 64),
    engine_name=EngineName("acme/bot@2"),
    pool=PoolName("base"),
    is_adapter=True,
    context_window_tokens=2048,
)
TEN = Split(ROLLOUT, 1, 10, "session", V2, V2.id)

percents = st.integers(1, 99)
names = st.text(min_size=1, max_size=40)


def test_worked_example_of_the_prologue() -> None:
    assert bucket_of(ROLLOUT, ACME, "chat-0") == 3944
    assert choose(TEN, ACME, "chat-0", "r1", None) == Choice("control", pin=True)
    assert choose(replace(TEN, percent=50), ACME, "chat-0", "r2", None) == Choice("candidate", pin=False)
    assert choose(replace(TEN, percent=50), ACME, "chat-0", "r2", "control") == Choice("control", pin=True)


@given(percents, percents, names)
def test_larger_share_never_moves_a_session_back(one: int, other: int, session: str) -> None:
    small, large = sorted((one, other))
    if choose(replace(TEN, percent=small), ACME, session, "r", None).group == "candidate":
        assert choose(replace(TEN, percent=large), ACME, session, "r", None).group == "candidate"


@given(percents, names, names)
def test_group_of_a_session_ignores_request_ids(percent: int, session: str, request_id: str) -> None:
    split = replace(TEN, percent=percent)
    assert choose(split, ACME, session, request_id, None) == choose(split, ACME, session, "another", None)


@pytest.mark.parametrize("percent", [1, 10, 50, 99])
def test_share_of_requests_matches_the_percent(percent: int) -> None:
    split = replace(TEN, percent=percent)
    chosen = sum(choose(split, ACME, None, f"request-{n}", None).group == "candidate" for n in range(20_000))
    assert chosen / 20_000 == pytest.approx(percent / 100, abs=0.015)


def test_requests_without_a_session_are_placed_one_by_one_and_never_pinned() -> None:
    choices = {choose(TEN, ACME, None, f"r{n}", None) for n in range(200)}
    assert choices == {Choice("candidate", pin=False), Choice("control", pin=False)}


def test_a_tenant_is_placed_as_a_whole() -> None:
    whole = replace(TEN, sticky="tenant", percent=50)
    for tenant in ("acme", "globex", "initech"):
        in_sessions = {choose(whole, TenantId(tenant), f"s{n}", f"r{n}", None).group for n in range(50)}
        assert in_sessions == {choose(whole, TenantId(tenant), None, f"r{n}", None).group for n in range(50)}
        assert len(in_sessions) == 1
    groups = {choose(whole, TenantId(f"t{n}"), None, "r", None).group for n in range(50)}
    assert groups == {"candidate", "control"}


def test_pinned_session_stays_when_its_tenant_moves() -> None:
    whole = replace(TEN, sticky="tenant", percent=1)
    assert choose(whole, ACME, "s", "r", None) == Choice("control", pin=True)
    assert choose(whole, ACME, None, "r", None) == Choice("control", pin=False)
    assert choose(replace(whole, percent=99), ACME, "s", "r", "control") == Choice("control", pin=True)
    assert choose(replace(whole, percent=99), ACME, "new", "r", None).group == "candidate"


def test_early_sessions_differ_between_rollouts() -> None:
    placed = {bucket_of(RolloutId(f"ro-0000000{n}"), ACME, "chat-0") < 5000 for n in range(10)}
    assert placed == {True, False}
    assert len({bucket_of(ROLLOUT, TenantId(t), "s") for t in ("a", "b", "c")}) == 3


@given(st.text(max_size=200))
def test_any_session_has_a_bucket(session: str) -> None:
    assert 0 <= bucket_of(ROLLOUT, ACME, session) < 10_000


def test_lone_surrogate_has_a_bucket() -> None:
    assert 0 <= bucket_of(ROLLOUT, ACME, "\ud800") < 10_000
