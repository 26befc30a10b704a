"""A base in rollout whose new version is on one replica: what becomes of its share while that replica is out."""

from functions.api.snapshot import SplitEntry
from functions.gateway.request.exchange import Exchange
from tests.gateway import sse
from tests.gateway.engine_rig import Play
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


def ask(p: Play, session: str | None = None, *, stream: bool = False) -> Exchange:
    more = {"header_x_session_id": session} if session is not None else {}
    return p.ask(POOL, stream=stream, header_x_request_id=subject_in("candidate"), **more)


async def breaks_a_stream(p: Play, session: str) -> None:
    """Its only replica is out for a while, for what it did to this one."""
    ask(p, session, stream=True)
    engine = await engine_of(p)
    assert engine.replica_id == NEW
    engine.begins_stream()
    engine.streams(sse.token(POOL, "hello"))
    engine.dies()
    await p.settle()
    assert p.client.error["code"] == "upstream_lost"


async def test_while_its_only_replica_is_out_the_old_version_answers(play: Playing) -> None:
    p = in_base_rollout(play)
    await breaks_a_stream(p, subject_in("candidate"))
    ask(p)
    engine = await engine_of(p)
    assert engine.replica_id == OLD
    engine.answers(200, sse.whole(POOL))
    assert (p.client.status, p.client.headers[b"x-shoal-rollout"]) == (200, FELL_BACK)
    assert groups(p) == ((2, 2), (1, 0)), "it is the new version's failure all the same"
    assert p.quiet()


async def test_a_request_that_its_only_replica_refuses_goes_on_to_the_old_version(play: Playing) -> None:
    p = in_base_rollout(play)
    ask(p)
    assert await p.refuses_connection() == NEW
    engine = await engine_of(p)
    assert engine.replica_id == OLD
    engine.answers(200, sse.whole(POOL))
    assert (p.client.status, p.client.headers[b"x-shoal-rollout"]) == (200, FELL_BACK)
    assert groups(p) == ((1, 1), (1, 0)) and p.quiet()


async def test_what_the_engine_makes_of_the_request_is_no_reason_to_ask_the_old_version(play: Playing) -> None:
    p = in_base_rollout(play)
    ask(p)
    (await engine_of(p)).refuses(500)
    await p.settle()
    assert (p.client.status, p.client.headers[b"x-shoal-rollout"]) == (502, CANDIDATE)
    assert groups(p) == ((1, 1), (0, 0)) and p.quiet()


async def test_a_session_that_has_heard_the_new_version_is_told_to_come_back(play: Playing) -> None:
    """A conversation must not change its voice but by a rollback."""
    p = in_base_rollout(play)
    session = subject_in("candidate")
    await breaks_a_stream(p, session)
    ask(p, session)
    await p.settle()
    assert p.client.status == 503 and p.quiet()
