"""Splits: the version that a request of a channel in rollout gets, from its headers to the engine's body."""

import json
from typing import Any

import pytest

from functions.decisions.catalogue import Catalogue
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.models import as_control
from functions.gateway.intake.routes import CHAT
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits, SplitUse
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, BOT_V1, BOT_V2, DIGEST_V2, NOW_UNIX_S, PEPPER, ROLLOUT, Clock, in_rollout

MESSAGES = [{"role": "user", "content": "hi"}]


class Door:
    """An intake with its own splits, and the snapshot of a stage."""

    def __init__(self, percent: int = 50, sticky: Any = "session") -> None:
        self.clock = Clock()
        self.splits = Splits(self.clock)
        self.intake = Intake(PEPPER, rig.limits(), self.splits)
        self.catalogue: Catalogue
        self.stage(0, percent, sticky)

    def stage(self, stage: int, percent: int, sticky: Any = "session") -> None:
        self.catalogue = rig.catalogue(stage + 1, **in_rollout(percent, stage=stage, sticky=sticky))

    def admit(
        self, model: str = "acme/bot", request_id: str = "r", header: str | None = None, **fields: Any
    ) -> Admitted:
        more = {"x_session_id": header} if header is not None else {}
        body = json.dumps({"model": model, "messages": MESSAGES, **fields}).encode()
        raw = RawRequest(request_id, rig.headers(ACME_KEY, **more), body)
        known = self.intake.recognise(self.catalogue, raw, NOW_UNIX_S)
        return self.intake.admit(self.catalogue, CHAT, raw, known)

    def groups(self, sessions: int = 2000) -> list[str]:
        return [split_of(self.admit(header=f"s{number}")).group for number in range(sessions)]


def split_of(admitted: Admitted) -> SplitUse:
    assert admitted.split is not None
    return admitted.split


def sent(admitted: Admitted) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(admitted.upstream_body)
    return parsed


def test_whole_request_uses_the_chosen_version() -> None:
    door = Door()
    by_group = {split_of(one).group: one for one in (door.admit(request_id=f"r{number}") for number in range(50))}
    candidate, control = by_group["candidate"], by_group["control"]
    assert (candidate.model.version, candidate.model.digest, sent(candidate)["model"]) == ("v2", DIGEST_V2, BOT_V2)
    assert (control.model.version, sent(control)["model"]) == ("v1", BOT_V1)
    assert candidate.model.requested == control.model.requested == "acme/bot"
    assert split_of(candidate).header() == b"ro-0000test; stage=0; group=candidate"
    assert split_of(candidate).control == control.model


@pytest.mark.parametrize("model", ["acme/bot@v1", "acme/bot@v2", f"acme/bot@{DIGEST_V2}", "acme/bot:canary"])
def test_only_the_channel_in_rollout_is_split(model: str) -> None:
    door = Door(percent=99)
    assert all(door.admit(model, request_id=f"r{number}").split is None for number in range(20))


def test_the_channels_long_name_is_split_too() -> None:
    assert split_of(Door().admit("acme/bot:stable")).rollout == ROLLOUT


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
def test_candidate_share_matches_the_stage(percent: int) -> None:
    """The share of 10,000 sessions is within four standard deviations; the hash misses it for one in 16,000 choices of
    names."""
    door, count = Door(percent), 10_000
    candidates = door.groups(count).count("candidate")
    expected = count * percent / 100
    assert abs(candidates - expected) < 4 * (expected * (1 - percent / 100)) ** 0.5


def test_a_session_keeps_its_version_from_stage_to_stage() -> None:
    door = Door(percent=1)
    first = door.groups()
    for stage, percent in ((1, 10), (2, 50), (3, 99)):
        door.stage(stage, percent)
        assert door.groups() == first, "who began on control stays there; who began on the candidate too"


def test_new_sessions_follow_the_new_share() -> None:
    door = Door(percent=1)
    door.groups(500)
    door.stage(1, 99)
    fresh = [split_of(door.admit(header=f"new-{number}")).group for number in range(500)]
    assert fresh.count("candidate") > 450


def test_session_silent_longer_than_its_ttl_is_new() -> None:
    door = Door(percent=1)
    door.groups(200)
    door.stage(1, 99)
    door.clock.forward(299)
    assert door.groups(200).count("candidate") < 20, "each of these begins its time anew"
    door.clock.forward(301)
    assert door.groups(200).count("candidate") > 180


def test_requests_without_a_session_are_split_one_by_one() -> None:
    door = Door()
    groups = [split_of(door.admit(request_id=f"r{number}")).group for number in range(2000)]
    assert 850 < groups.count("candidate") < 1150
    assert len(door.splits.pins) == 0


def test_sticky_tenant_is_in_one_group() -> None:
    door = Door(sticky="tenant")
    groups = {split_of(door.admit(header=f"s{number}", request_id=f"r{number}")).group for number in range(50)}
    assert len(groups) == 1


def test_sessions_stay_when_their_sticky_tenant_moves() -> None:
    door = Door(percent=1, sticky="tenant")
    assert set(door.groups(50)) == {"control"}
    door.stage(1, 99, sticky="tenant")
    assert set(door.groups(50)) == {"control"}
    assert {split_of(door.admit(header=f"new-{number}")).group for number in range(50)} == {"candidate"}
    assert {split_of(door.admit(request_id=f"r{number}")).group for number in range(50)} == {"candidate"}


@pytest.mark.parametrize(
    "named",
    [
        {"header": "one"},
        {"session_id": "one"},
        {"prompt_cache_key": "one"},
        {"header": "one", "session_id": "two", "prompt_cache_key": "three"},
        {"session_id": "one", "prompt_cache_key": "three"},
        {"header": "", "session_id": "one"},
        {"header": "", "session_id": None, "prompt_cache_key": "one"},
    ],
)
def test_session_is_read_from_header_or_body(named: dict[str, Any]) -> None:
    """The header takes precedence over `session_id`, and that over `prompt_cache_key`; an empty one is ignored."""
    one = {split_of(Door().admit(header="one")).session}
    assert {split_of(Door().admit(request_id=f"r{number}", **named)).session for number in range(3)} == one


def test_session_fields_do_not_reach_the_engine() -> None:
    body = sent(Door().admit(session_id="one", prompt_cache_key="two"))
    assert body.keys() & {"session_id", "prompt_cache_key"} == set()
    assert "session_id" not in sent(Door().admit("acme/bot@v1", session_id="one"))


@pytest.mark.parametrize(
    ("named", "param"),
    [
        ({"header": "x" * 513}, "X-Session-ID"),
        ({"session_id": "x" * 513}, "session_id"),
        ({"prompt_cache_key": "x" * 513}, "prompt_cache_key"),
        ({"session_id": 7}, "session_id"),
        ({"prompt_cache_key": ["x"]}, "prompt_cache_key"),
    ],
)
def test_invalid_session_names_are_refused(named: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        Door().admit(**named)
    assert (refused.value.answer.status, refused.value.answer.param) == (400, param)


def test_fallback_moves_request_and_session_to_control() -> None:
    door = Door(percent=99)
    admitted = door.admit(header="one", temperature=0.5)
    assert split_of(admitted).group == "candidate" and door.splits.may_fall_back(admitted.split)
    control = as_control(admitted, door.splits)
    assert (control.model.version, sent(control)["model"], sent(control)["temperature"]) == ("v1", BOT_V1, 0.5)
    assert split_of(control).header() == b"ro-0000test; stage=0; group=control; reason=candidate_unavailable"
    assert not door.splits.may_fall_back(control.split)
    assert split_of(door.admit(header="one")).group == "control"
    assert [entry.rollout for entry in door.splits.pins.to_publish()] == [ROLLOUT], "the other gateways must know"


def test_session_answered_by_the_candidate_does_not_fall_back() -> None:
    door = Door(percent=99)
    door.splits.answering(split_of(door.admit(header="one")))
    assert not door.splits.may_fall_back(door.admit(header="one").split)
    door.splits.answering(split_of(door.admit(request_id="no session")))
    assert door.splits.may_fall_back(door.admit(request_id="no session").split)
    assert not door.splits.may_fall_back(None)


def test_first_answer_of_concurrent_requests_pins_the_session() -> None:
    door = Door(percent=99)
    one, other = split_of(door.admit(header="s")), split_of(door.admit(header="s"))
    door.splits.answering(one)
    assert not door.splits.may_fall_back(other), "the session has heard the candidate since"
    late, quick = split_of(door.admit(header="t")), split_of(door.admit(header="t"))
    door.splits.fall_back(quick)
    door.splits.answering(late)
    assert split_of(door.admit(header="t")).group == "control"


def test_long_answer_does_not_make_its_session_new() -> None:
    """A session's TTL runs from the end of its last answer."""
    door = Door(percent=1)
    use = split_of(door.admit(header="one"))
    assert use.group == "control"
    door.clock.forward(400)
    door.splits.answering(use)
    door.stage(1, 99)
    assert split_of(door.admit(header="one")).group == "control"


@pytest.mark.parametrize("sticky", ["session", "tenant"])
def test_starting_rollout_keeps_running_sessions_on_control(sticky: Any) -> None:
    door = Door()
    door.catalogue = rig.catalogue(1)
    for number in range(100):
        assert door.admit(header=f"s{number}").split is None
    door.clock.forward(299)
    door.stage(0, 99, sticky)
    assert set(door.groups(100)) == {"control"}
    assert len(door.splits.pins) == 100, "and the other gateways are told"
    fresh = [split_of(door.admit(header=f"new-{number}")).group for number in range(100)]
    assert sticky == "tenant" or fresh.count("candidate") > 90


def test_session_from_before_the_rollout_silent_for_its_ttl_is_new() -> None:
    door = Door()
    door.catalogue = rig.catalogue(1)
    door.admit(header="one")
    door.admit("acme/bot:canary", header="two")
    door.clock.forward(300)
    door.splits.expire()
    door.stage(0, 99)
    assert [split_of(door.admit(header=name)).group for name in ("one", "two")] == ["candidate", "candidate"]


def test_requests_without_a_session_are_not_remembered() -> None:
    door = Door()
    door.catalogue = rig.catalogue(1)
    door.admit()
    assert len(door.splits._served) == 0
    door.admit("smollm2-135m", header="one")
    assert len(door.splits._served) == 1, "a base has rollouts, too"


def test_answer_after_the_rollouts_end_pins_nothing() -> None:
    door = Door(percent=99)
    use = split_of(door.admit(header="one"))
    door.splits.forget_ended(lambda rollout, model: False)
    door.splits.answering(use)
    door.splits.fall_back(use)
    assert len(door.splits.pins) == 0


def test_only_pins_of_ended_rollouts_are_dropped() -> None:
    door = Door()
    door.groups(50)
    held = len(door.splits.pins)
    door.splits.forget_ended(lambda rollout, model: (rollout, model) == (ROLLOUT, "acme/bot"))
    assert len(door.splits.pins) == held > 0
    door.splits.forget_ended(lambda rollout, model: False)
    assert len(door.splits.pins) == 0
