"""The exchange of a channel in rollout: both versions' answers, the evidence, and the version that a session keeps."""

from typing import Any

import msgspec
import pytest

from functions.api.ids import TenantId
from functions.decisions.rollout.evidence import STREAM_SHARES, GroupStats
from functions.decisions.rollout.split import bucket_of
from functions.gateway.intake.routes import TOKENIZE
from functions.gateway.request.exchange import RequestExchange
from tests.gateway import sse
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import Playing
from tests.gateway.loader_rig import PlayedLoader
from tests.gateway.rig import BOT_V1, BOT_V2, ROLLOUT, catalogue, heartbeat, in_rollout, routing, snapshot

ACME = TenantId("acme")
CANDIDATE = b"ro-0000test; stage=0; group=candidate"
CONTROL = b"ro-0000test; stage=0; group=control"
FELL_BACK = CONTROL + b"; reason=candidate_unavailable"


def subject_in(group: str, percent: int = 50) -> str:
    """Return a session or request id that the hash puts into the group."""
    found = (f"s{number}" for number in range(1000))
    return next(name for name in found if (bucket_of(ROLLOUT, ACME, name) < percent * 100) == (group == "candidate"))


def send_in_group(p: Play, group: str, session: str | None = None, **more: Any) -> RequestExchange:
    """Send a request of that group, chosen by its id or by its session."""
    if session is not None:
        more["header_x_session_id"] = session
    exchange = p.ask(header_x_request_id=subject_in(group), **more)
    assert exchange.admitted.split is not None and exchange.admitted.split.group == group
    return exchange


async def engine_of(p: Play) -> Engine:
    """Return the engine that got the request, on a new or an idle connection."""
    await p.settle()
    return await p.connects() if p.dials else p.engine


def groups(p: Play, stage: int = 0) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the requests and errors of the candidate and of the control."""
    candidate, control = p.gateway.services.rollouts.evidence.stats(ROLLOUT, stage) or (GroupStats(), GroupStats())
    return (candidate.requests, candidate.errors), (control.requests, control.errors)


async def test_each_group_is_answered_by_its_version_with_its_header(play: Playing) -> None:
    p = play("r0", **in_rollout())
    for group, name, version, header in (
        ("candidate", BOT_V2, b"acme/bot@v2", CANDIDATE),
        ("control", BOT_V1, b"acme/bot@v1", CONTROL),
    ):
        send_in_group(p, group, stream=False)
        engine = await engine_of(p)
        assert engine.requests[-1]["model"] == name
        engine.answers(200, sse.whole(name))
        assert p.client.body == sse.whole("acme/bot")
        assert (p.client.headers[b"x-shoal-model"], p.client.headers[b"x-shoal-rollout"]) == (version, header)
    assert groups(p) == ((1, 0), (1, 0)) and p.quiet()


async def test_without_a_rollout_there_is_no_header_and_no_evidence(play: Playing) -> None:
    p = play("r0")
    p.ask(stream=False)
    (await p.connects()).answers(200, sse.whole(BOT_V1))
    assert b"x-shoal-rollout" not in p.client.headers and p.gateway.services.rollouts.evidence.heartbeats() == []


async def test_retry_stays_on_its_version(play: Playing) -> None:
    p = play("r0", "r1", **in_rollout())
    send_in_group(p, "candidate", stream=False)
    (await engine_of(p)).dies()
    second = await engine_of(p)
    assert second.requests[0]["model"] == BOT_V2
    second.answers(200, sse.whole(BOT_V2))
    assert p.client.status == 200 and groups(p) == ((1, 0), (0, 0)), "one request, however many attempts"


async def test_failed_candidate_is_its_error_and_the_header_names_it(play: Playing) -> None:
    p = play("r0", "r1", **in_rollout())
    send_in_group(p, "candidate", stream=False)
    for _ in range(2):
        (await engine_of(p)).refuses(500)
    await p.settle()
    assert p.client.status == 502 and p.client.headers[b"x-shoal-rollout"] == CANDIDATE
    assert groups(p) == ((1, 1), (0, 0))


async def test_an_error_inside_a_stream_counts(play: Playing) -> None:
    p = play("r0", **in_rollout())
    send_in_group(p, "candidate", stream=True)
    engine = await engine_of(p)
    engine.begins_stream()
    engine.streams(sse.token(BOT_V2, "hello"))
    engine.dies()
    assert p.client.error["code"] == "upstream_lost" and groups(p) == ((1, 1), (0, 0))


async def test_client_disconnect_and_caller_error_are_no_evidence(play: Playing) -> None:
    p = play("r0", **in_rollout())
    send_in_group(p, "control", stream=False)
    (await engine_of(p)).refuses(400)
    assert p.client.status == 400
    send_in_group(p, "candidate").client_left()
    assert groups(p) == ((0, 0), (0, 0))


async def test_tokenize_requests_are_no_evidence(play: Playing) -> None:
    p = play("r0", **in_rollout())
    for number in range(20):
        p.ask(route=TOKENIZE, stream=False, header_x_request_id=f"r{number}")
        (await engine_of(p)).answers(200, b'{"count":1}')
        assert p.client.status == 200 and b"x-shoal-rollout" in p.client.headers
    assert p.gateway.services.rollouts.evidence.heartbeats() == []


async def test_latencies_are_those_the_client_saw(play: Playing) -> None:
    p = play("r0", **in_rollout())
    send_in_group(p, "candidate", stream=True)
    engine = await engine_of(p)
    engine.begins_stream()
    p.rig.clock.forward(0.2)
    engine.streams(sse.token(BOT_V2, "a"))
    for _ in range(4):
        p.rig.clock.forward(0.05)
        engine.streams(sse.token(BOT_V2, "b"))
    engine.streams(sse.DONE)
    engine.ends_stream()
    candidate = (p.gateway.services.rollouts.evidence.stats(ROLLOUT, 0) or (GroupStats(), GroupStats()))[0]
    found = [it.quantile(0.5) or 0.0 for it in (candidate.ttft_ms, candidate.inter_token_ms, candidate.total_ms)]
    assert found == [pytest.approx(wanted, rel=0.13) for wanted in (200, 50, 400)]


# a candidate that no replica has


def without_candidate(play: Playing, loader: PlayedLoader | None = None) -> Play:
    p = play("r0", "r1", loader=loader, **in_rollout())
    for name in ("r0", "r1"):
        p.gateway.receive_heartbeat(heartbeat(name, sequence=2, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    return p


async def test_new_session_without_candidate_stays_on_control(play: Playing) -> None:
    p = without_candidate(play, PlayedLoader())
    session = subject_in("candidate")
    send_in_group(p, "control", stream=False, session=session)
    engine = await engine_of(p)
    assert engine.requests[-1]["model"] == BOT_V1
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.body == sse.whole("acme/bot")
    assert (p.client.headers[b"x-shoal-model"], p.client.headers[b"x-shoal-rollout"]) == (b"acme/bot@v1", FELL_BACK)
    assert groups(p) == ((1, 1), (1, 0)), "the candidate was asked for and was not there; control answered"
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=3, adapters=(BOT_V1, BOT_V2)))
    send_in_group(p, "control", session=session).client_left()


async def test_session_of_the_candidate_waits_for_its_load(play: Playing) -> None:
    loader = PlayedLoader()
    p = play("r0", loader=loader, **in_rollout())
    session = subject_in("candidate")
    send_in_group(p, "candidate", stream=False, session=session)
    (await engine_of(p)).answers(200, sse.whole(BOT_V2))
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    send_in_group(p, "candidate", stream=False, session=session)
    call = await loader.next()
    assert call.engine_name == BOT_V2
    call.answers("slow")
    await p.settle()
    assert (p.client.status, p.client.error["code"]) == (503, "model_not_ready")
    assert groups(p) == ((2, 1), (0, 0))


async def test_engine_404_for_an_announced_candidate_falls_back_to_control(play: Playing) -> None:
    p = play("r0", **in_rollout())
    send_in_group(p, "candidate", stream=False)
    (await engine_of(p)).refuses(404)
    engine = await engine_of(p)
    assert engine.requests[-1]["model"] == BOT_V1
    engine.answers(200, sse.whole(BOT_V1))
    assert p.client.headers[b"x-shoal-rollout"] == FELL_BACK and groups(p) == ((1, 1), (1, 0)) and p.quiet()


async def test_control_keeps_the_attempt_count_of_the_candidate(play: Playing) -> None:
    """r0 refuses the candidate's connection; r1 lacks both versions, though its agent reports one as loaded."""
    loader = PlayedLoader()
    p = play("r0", "r1", loader=loader, **in_rollout())
    p.gateway.receive_heartbeat(heartbeat("r1", sequence=2, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    exchange = send_in_group(p, "candidate", stream=False)
    assert await p.refuses_connection() == "r0"
    p.after(30.0)  # r0 would be tried again, had this request not failed there
    for replica in ("r0", "r1"):
        p.gateway.receive_heartbeat(heartbeat(replica, sequence=3, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    lacking = await engine_of(p)
    lacking.refuses(404)
    await p.settle()
    assert loader.asked == ["r1"], "its beat is not believed again"
    loader.calls[0].answers("loaded")
    await p.settle()
    lacking.refuses(404)
    await p.settle()
    assert lacking.replica_id == "r1" and [each["model"] for each in lacking.requests] == [BOT_V1, BOT_V1]
    assert exchange.tries.count == 3 and exchange.ended, "as many as the policy allows, whichever version"
    assert p.client.status == 503 and p.quiet()


async def test_control_does_not_return_to_a_replica_that_failed_the_candidate(play: Playing) -> None:
    """A draining engine is no evidence against its replica, so only the request itself avoids it."""
    p = play("r0", "r1", **in_rollout())
    p.gateway.receive_heartbeat(heartbeat("r1", sequence=2, adapters=()))
    exchange = send_in_group(p, "candidate", stream=False)
    (await engine_of(p)).answers(200, sse.whole(BOT_V2, "", "abort", 0))
    await p.settle()
    assert exchange.ended and len(p.engine.requests) == 1
    assert (p.client.status, p.client.error["code"]) == (503, "model_not_ready") and p.quiet()


async def test_control_may_use_the_replica_that_lacked_the_candidate(play: Playing) -> None:
    p = play("r0", "r1", **in_rollout())
    p.gateway.receive_heartbeat(heartbeat("r1", sequence=2, adapters=()))
    send_in_group(p, "candidate", stream=False)
    lacking = await engine_of(p)
    lacking.refuses(404)
    engine = await engine_of(p)
    assert engine.replica_id == lacking.replica_id == "r0" and engine.requests[-1]["model"] == BOT_V1


async def test_dead_pool_is_no_evidence(play: Playing) -> None:
    p = play("r0", **in_rollout())
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="dead"))
    send_in_group(p, "candidate")
    assert p.client.error["code"] == "no_capacity" and groups(p) == ((0, 0), (0, 0))


async def test_rollout_metrics_match_the_evidence(play: Playing) -> None:
    """503 for lack of capacity counted as a failure: `BadVersion` fired for the new version whenever the pool was
    full."""
    p = play("r0", **in_rollout())
    send_in_group(p, "candidate", stream=False)
    (await engine_of(p)).refuses(500)
    await p.settle()
    assert p.client.status == 502
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="dead"))
    send_in_group(p, "candidate")
    assert p.client.status == 503
    value, labels = p.gateway.services.metrics.registry.get_sample_value, {"model": "acme/bot", "group": "candidate"}
    assert [value(f"shoal_rollout_{what}_total", labels) for what in ("requests", "failures")] == [2, 1]


# the rollout advances, and ends


async def test_streams_finish_on_the_version_they_started_on(play: Playing) -> None:
    p = play("r0", **in_rollout())
    exchange = send_in_group(p, "candidate", stream=True)
    engine = await engine_of(p)
    engine.begins_stream()
    engine.streams(sse.token(BOT_V2, "one"))
    client = p.client
    p.gateway.swap(catalogue(2))  # rolled back
    engine.streams(sse.token(BOT_V2, " two"), sse.DONE)
    engine.ends_stream()
    assert exchange.ended and client.body.endswith(sse.DONE) and b"two" in client.body
    assert groups(p) == ((1, 0), (0, 0)), "it is still the candidate's"


async def test_rolled_back_session_gets_the_old_version_and_loses_its_pin(play: Playing) -> None:
    p = play("r0", **in_rollout())
    session = subject_in("candidate")
    send_in_group(p, "candidate", stream=False, session=session)
    (await engine_of(p)).answers(200, sse.whole(BOT_V2))
    assert len(p.gateway.services.rollouts.splits.pins) == 1
    p.gateway.swap(catalogue(2))
    assert len(p.gateway.services.rollouts.splits.pins) == 0
    p.ask(stream=False, header_x_session_id=session)
    assert p.engine.requests[-1]["model"] == BOT_V1


async def test_requests_count_for_the_stage_in_which_they_started(play: Playing) -> None:
    p = play("r0", **in_rollout(stage=0))
    send_in_group(p, "candidate", stream=False)
    engine, client = await engine_of(p), p.client
    p.gateway.swap(catalogue(2, **in_rollout(90, stage=1)))
    engine.answers(200, sse.whole(BOT_V2))
    assert client.headers[b"x-shoal-rollout"] == CANDIDATE
    send_in_group(p, "candidate", stream=False)
    (await engine_of(p)).answers(200, sse.whole(BOT_V2))
    assert groups(p, 0) == groups(p, 1) == ((1, 0), (0, 0))


async def test_session_with_a_partial_answer_is_pinned(play: Playing) -> None:
    """The client that stops a stream has read some of it; so has one whose stream ended in an error."""
    p = play("r0", loader=PlayedLoader(), **in_rollout())
    session = subject_in("candidate")
    exchange = send_in_group(p, "candidate", stream=True, session=session)
    engine = await engine_of(p)
    engine.begins_stream()
    engine.streams(sse.token(BOT_V2, "hello"))
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    send_in_group(p, "candidate", session=session).client_left()  # it waits for the candidate at once
    exchange.client_left()
    send_in_group(p, "candidate", session=session).client_left()
    assert groups(p) == ((0, 0), (0, 0)) and p.quiet()


async def waiting_for_the_candidate(play: Playing, loader: PlayedLoader) -> Play:
    """Let a session of the candidate request it after every replica has lost it."""
    p = play("r0", loader=loader, **in_rollout())
    session = subject_in("candidate")
    send_in_group(p, "candidate", stream=False, session=session)
    (await engine_of(p)).answers(200, sse.whole(BOT_V2))
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, adapters=(BOT_V1,), peer_port=9, adapter_room=1))
    send_in_group(p, "candidate", stream=False, session=session)
    await loader.next()
    return p


async def test_rollback_answers_requests_that_wait_for_the_candidate(play: Playing) -> None:
    p = await waiting_for_the_candidate(play, PlayedLoader())
    p.gateway.swap(catalogue(2))
    await p.settle()
    assert p.engine.requests[-1]["model"] == BOT_V1
    p.engine.answers(200, sse.whole(BOT_V1))
    assert (p.client.status, p.client.headers[b"x-shoal-model"]) == (200, b"acme/bot@v1") and p.quiet()
    assert p.gateway.services.adapter_loads is not None and p.gateway.services.adapter_loads.waiting == 0


async def test_completed_rollout_or_new_stage_keeps_requests_waiting(play: Playing) -> None:
    p = await waiting_for_the_candidate(play, PlayedLoader())
    p.gateway.swap(catalogue(2, **in_rollout(90, stage=1)))
    completed = tuple(
        msgspec.structs.replace(model, channels={"stable": "v2"}) if model.id == "acme/bot" else model
        for model in snapshot().models
    )
    p.gateway.swap(catalogue(3, models=completed))
    assert (
        p.gateway.services.adapter_loads is not None
        and p.gateway.services.adapter_loads.waiting == 1
        and p.client.status is None
    )


async def test_retry_after_a_rollback_uses_the_old_version(play: Playing) -> None:
    """The candidate was unloaded while a request had not started its answer."""
    p = play("r0", loader=PlayedLoader(), **in_rollout())
    session = subject_in("candidate")
    send_in_group(p, "candidate", stream=False, session=session)
    (await engine_of(p)).answers(200, sse.whole(BOT_V2))
    send_in_group(p, "candidate", stream=False, session=session)
    p.gateway.swap(catalogue(2))
    p.engine.refuses(404)
    await p.settle()
    assert p.engine.requests[-1]["model"] == BOT_V1
    p.engine.answers(200, sse.whole(BOT_V1))
    assert p.client.status == 200 and p.quiet()


async def test_callers_deadline_is_no_evidence(play: Playing) -> None:
    p = play("r0", **in_rollout())
    for group in ("candidate", "control"):
        send_in_group(p, group, header_x_shoal_deadline_ms="100")
        await engine_of(p)
        p.after(0.2)
        assert p.client.status == 504
    send_in_group(p, "candidate", header_x_shoal_deadline_ms="100")  # none in the middle of a stream either
    engine = await engine_of(p)
    engine.begins_stream()
    engine.streams(sse.role(BOT_V2) + sse.token(BOT_V2, "a"))
    p.after(0.2)
    assert groups(p) == ((0, 0), (0, 0)) and p.quiet()


async def test_platform_timeouts_are_evidence_whatever_the_callers_deadline(play: Playing) -> None:
    p = play("r0", **in_rollout(routing=(routing(retry_max_attempts=1),)))
    for more in ({}, {"header_x_shoal_deadline_ms": "300000"}, {"header_x_shoal_deadline_ms": "3600000"}):
        send_in_group(p, "candidate", **more)
        await engine_of(p)
        p.after(p.gateway.services.limits.first_byte_s + 1)  # no first byte
        assert p.client.status == 504
    assert groups(p)[0] == (3, 3)


async def test_slow_client_does_not_make_a_version_slow(play: Playing) -> None:
    p = play("r0", **in_rollout())
    exchange = send_in_group(p, "candidate")
    engine = await engine_of(p)
    engine.begins_stream()
    engine.streams(sse.role(BOT_V2) + sse.token(BOT_V2, "a"))
    exchange.pause()
    p.rig.clock.forward(20.0)
    exchange.resume()
    engine.streams(sse.token(BOT_V2, "b") + sse.finish(BOT_V2) + sse.usage(BOT_V2) + sse.DONE)
    engine.ends_stream()
    candidate, _ = p.gateway.services.rollouts.evidence.stats(ROLLOUT, 0) or (GroupStats(), GroupStats())
    assert candidate.requests == 1
    for sketch, count in ((candidate.total_ms, 1), (candidate.inter_token_ms, STREAM_SHARES)):
        assert sketch.count == count and (sketch.quantile(0.5) or 0.0) < 100
