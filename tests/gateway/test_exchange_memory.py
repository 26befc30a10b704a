"""An ended request leaves nothing behind for the garbage collector.

An exchange and its attempt refer to each other. If that cycle stayed closed, each request's objects, with a body of up
to 4 MiB, would stay in memory until the collector's third generation ran: measured, 600 KiB for a request of 200 KB.
"""

import gc
from collections.abc import Iterator

import pytest

from functions.gateway.request.attempt import Attempt
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.request.split import PrefillSplit
from tests.gateway import sse, test_split
from tests.gateway.client_rig import CHAT_BODY, STREAM_BODY, Connection, post
from tests.gateway.engine_rig import Play
from tests.gateway.hello import HELLO, Playing, finishes
from tests.gateway.rig import BOT_V1


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.freeze()  # leave out what existed before: hundreds of thousands of objects of the tests
    gc.disable()
    yield
    gc.enable()


def requests_in_memory() -> list[RequestExchange | Attempt | PrefillSplit]:
    return [found for found in gc.get_objects() if isinstance(found, RequestExchange | Attempt | PrefillSplit)]


async def _answered(play: Play, connection: Connection) -> None:
    play.engine.answers(200, sse.whole(BOT_V1))


async def _streamed(play: Play, connection: Connection) -> None:
    finishes(play.engine)


async def _broken_off(play: Play, connection: Connection) -> None:
    play.engine.begins_stream()
    play.engine.streams(HELLO)
    play.engine.dies()


async def _refused(play: Play, connection: Connection) -> None:
    play.engine.refuses(400)


async def _left(play: Play, connection: Connection) -> None:
    play.engine.begins_stream()
    play.engine.streams(HELLO)
    connection.leaves()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("body", "ends"),
    [
        (CHAT_BODY, _answered),
        (CHAT_BODY, _refused),
        (STREAM_BODY, _streamed),
        (STREAM_BODY, _broken_off),
        (STREAM_BODY, _left),
    ],
)
async def test_an_ended_request_needs_no_collector(play: Playing, body: bytes, ends) -> None:  # type: ignore[no-untyped-def]
    of_others = {id(kept): kept for kept in requests_in_memory()}  # another test's; kept, so that no id is reused
    p = play("r0")
    connection = Connection(p)
    connection >> post(body)
    await p.connects()
    await ends(p, connection)
    await p.settle()
    assert p.quiet()
    assert [kept for kept in requests_in_memory() if id(kept) not in of_others] == []


async def _prefills(play: Play) -> None:
    (await play.connects()).answers(200, test_split.prefilled())
    test_split.decodes(await play.connects())


async def _prefill_fails(play: Play) -> None:
    (await play.connects()).dies()
    test_split.decodes(await play.connects())


async def _leaves_while_prefilling(play: Play) -> None:
    await play.connects()
    assert play.exchange is not None
    play.exchange.client_left()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("ends", [_prefills, _prefill_fails, _leaves_while_prefilling])
async def test_an_ended_split_needs_no_collector(ends) -> None:  # type: ignore[no-untyped-def]
    of_others = {id(kept): kept for kept in requests_in_memory()}
    play = test_split.playing()
    test_split.ask(play)
    await ends(play)
    await play.settle()
    assert play.quiet()
    play.exchange = None  # the test's own reference
    assert [kept for kept in requests_in_memory() if id(kept) not in of_others] == []
