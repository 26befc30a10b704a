"""Rollout of a base whose new version runs on one replica, and what happens to its share while that replica is out."""

from functions.api.snapshot import SplitEntry
from functions.decisions.health.ejection import EJECTION_BASE_S
from functions.decisions.rollout.losses import BURST_S
from functions.gateway.request.exchange import RequestExchange
from tests.gateway import sse
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.hello import Playing
from tests.gateway.rig import DIGEST_V1, DIGEST_V2, POOL, ROLLOUT, heartbeat
from tests.gateway.test_base_splits import versions
from tests.gateway.test_exchange_rollouts import CANDIDATE, FELL_BACK, engine_of, groups, subject_in

NEW, OLD = "r1", "r0"


def in_base_rollout(play: Playing) -> Play:
    p = play(OLD, NEW, **versions(SplitEntry("stable", ROLLOUT, 0, 50, "v2")))
    for replica, digest in ((OLD, DIGEST_V1), (NEW, DIGEST_V2)):
        p.gateway.receive_heartbeat(heartbeat(replica, sequence=2, weights_digest=digest))
    return p


def send_request(p: Play, session: str | None = None, *, stream: bool = False) -> RequestExchange:
    more = {"header_x_session_id": session} if session is not None else {}
    return p.ask(POOL, stream=stream, header_x_request_id=subject_in("candidate"), **more)


async def breaks_a_stream(p: Play, session: str) -> None:
    """Break a stream of the candidate, so that its only replica is ejected."""
    send_request(p, session, stream=True)
    engine = await engine_of(p)
    assert engine.replica_id == NEW
    engine.begins_stream()
    engine.streams(sse.token(POOL, "hello"))
    engine.dies()
    await p.settle()
    assert p.client.error["code"] == "upstream_lost"


async def test_control_answers_while_the_candidates_only_replica_is_ejected(play: Playing) -> None:
    p = in_base_rollout(play)
    await breaks_a_stream(p, subject_in("candidate"))
    send_request(p)
    engine = await engine_of(p)
    assert engine.replica_id == OLD
    engine.answers(200, sse.whole(POOL))
    assert (p.client.status, p.client.headers[b"x-shoal-rollout"]) == (200, FELL_BACK)
    assert groups(p) == ((1, 1), (1, 0)), "the stream is the new version's failure, and what went on elsewhere none"
    assert p.quiet()


async def test_request_refused_by_the_candidates_only_replica_goes_to_control(play: Playing) -> None:
    p = in_base_rollout(play)
    send_request(p)
    assert await p.refuses_connection() == NEW
    engine = await engine_of(p)
    assert engine.replica_id == OLD
    engine.answers(200, sse.whole(POOL))
    assert (p.client.status, p.client.headers[b"x-shoal-rollout"]) == (200, FELL_BACK)
    assert groups(p) == ((1, 1), (1, 0)) and p.quiet()


async def test_engine_error_does_not_fall_back_to_control(play: Playing) -> None:
    p = in_base_rollout(play)
    send_request(p)
    (await engine_of(p)).refuses(500)
    await p.settle()
    assert (p.client.status, p.client.headers[b"x-shoal-rollout"]) == (502, CANDIDATE)
    assert groups(p) == ((1, 1), (0, 0)) and p.quiet()


async def test_session_of_the_candidate_gets_503_while_its_replica_is_ejected(play: Playing) -> None:
    """The version of a conversation changes only by a rollback."""
    p = in_base_rollout(play)
    session = subject_in("candidate")
    await breaks_a_stream(p, session)
    send_request(p, session)
    await p.settle()
    assert p.client.status == 503 and p.quiet()


async def test_request_joins_the_probe_of_its_only_replica(play: Playing) -> None:
    """While one request probed the replica, 75 others were rejected: no other replica had the version."""
    p = in_base_rollout(play)
    session = subject_in("candidate")
    await breaks_a_stream(p, session)
    p.rig.clock.forward(EJECTION_BASE_S + 0.1)
    for replica, digest in ((OLD, DIGEST_V1), (NEW, DIGEST_V2)):
        p.gateway.receive_heartbeat(heartbeat(replica, sequence=3, weights_digest=digest))
    engines = []
    for _ in range(2):
        send_request(p, session)
        engines.append(await engine_of(p))
    assert [engine.replica_id for engine in engines] == [NEW, NEW], "the second beside the first, which is the probe"
    for engine in engines:
        engine.answers(200, sse.whole(POOL))
    assert p.client.status == 200 and p.quiet()


# a lost replica


async def streaming(p: Play, count: int) -> list[Engine]:
    """Start so many streams of the new version."""
    engines = []
    for _ in range(count):
        send_request(p, stream=True)
        engine = await engine_of(p)
        assert engine.replica_id == NEW
        engine.begins_stream()
        engine.streams(sse.token(POOL, "hello"))
        engines.append(engine)
    return engines


def decide_failures(p: Play) -> None:
    """Advance the clock by BURST_S, so that pending failures are decided."""
    p.rig.clock.forward(BURST_S)
    p.gateway.services.rollouts.evidence.heartbeats()


async def answered_whole(p: Play) -> None:
    send_request(p, stream=False)
    (await engine_of(p)).answers(200, sse.whole(POOL))
    assert p.client.status == 200


async def test_streams_of_one_lost_replica_are_one_failure(play: Playing) -> None:
    p = in_base_rollout(play)
    await answered_whole(p)
    for engine in await streaming(p, 12):
        engine.dies()
    await p.settle()
    decide_failures(p)
    assert groups(p) == ((2, 1), (0, 0)) and p.quiet()


async def test_replica_that_breaks_some_streams_and_continues_fails_each_time(play: Playing) -> None:
    p = in_base_rollout(play)
    breaking, breaking_too, *others = await streaming(p, 10)
    breaking.dies()
    breaking_too.dies()
    p.rig.clock.forward(0.3)
    for engine in others:
        engine.streams(sse.DONE)
        engine.ends_stream()
    await p.settle()
    assert groups(p) == ((10, 2), (0, 0)) and p.quiet()


async def test_unstarted_requests_of_a_lost_replica_belong_to_the_same_failure(play: Playing) -> None:
    p = in_base_rollout(play)
    await answered_whole(p)
    (stream,) = await streaming(p, 1)
    waiting = []
    for _ in range(3):
        send_request(p)
        waiting.append(await engine_of(p))
    for engine in (stream, *waiting):
        engine.dies()
    for _ in waiting:
        engine = await engine_of(p)
        assert engine.replica_id == OLD
        engine.answers(200, sse.whole(POOL))
    decide_failures(p)
    assert groups(p) == ((2, 1), (3, 0)) and p.quiet()


async def test_share_of_a_restarting_replica_is_no_evidence(play: Playing) -> None:
    """The old version answers, so no client is harmed; the controller limits how long this may last."""
    p = in_base_rollout(play)
    await answered_whole(p)
    p.gateway.receive_heartbeat(heartbeat(NEW, sequence=3, weights_digest=DIGEST_V2, phase="starting"))
    for _ in range(40):
        send_request(p)
        engine = await engine_of(p)
        assert engine.replica_id == OLD
        engine.answers(200, sse.whole(POOL))
    assert groups(p) == ((1, 0), (40, 0)) and p.quiet()


async def test_unstarted_requests_of_a_draining_replica_are_no_evidence(play: Playing) -> None:
    """A spot machine is withdrawn: its engine rejects all requests that wait there."""
    p = in_base_rollout(play)
    await answered_whole(p)
    others = []
    for _ in range(5):
        send_request(p, stream=True)
        engine = await engine_of(p)
        assert engine.replica_id == NEW
        engine.begins_stream()
        engine.streams(sse.finish(POOL, "abort"))
        others.append(await engine_of(p))
    for other in others:
        assert other.replica_id == OLD
        other.begins_stream()
        other.streams(sse.token(POOL, "hello"), sse.DONE)
        other.ends_stream()
    assert groups(p) == ((1, 0), (5, 0)) and p.quiet()


async def test_rejected_session_is_no_evidence(play: Playing) -> None:
    p = in_base_rollout(play)
    session = subject_in("candidate")
    send_request(p, session)
    (await engine_of(p)).answers(200, sse.whole(POOL))
    p.gateway.receive_heartbeat(heartbeat(NEW, sequence=3, weights_digest=DIGEST_V2, phase="starting"))
    send_request(p, session)
    await p.settle()
    assert p.client.status == 503 and groups(p) == ((1, 0), (0, 0)) and p.quiet()
