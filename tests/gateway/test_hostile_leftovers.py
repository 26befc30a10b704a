"""Hostile requests leave nothing behind that grows.

An attack of 6,029 bodies made a gateway grow from 238 to 319 MB, which is what the allocator keeps of the largest
bodies. After one round of the corpus, further rounds add no object and the resident set stays constant.
"""

import gc

from tests.gateway.broken import ALL
from tests.gateway.client_rig import Connection, Server
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing


async def all_of_them(p: Play, server: Server) -> None:
    for broken in ALL:
        connection = Connection(p, server) >> broken.data
        await p.settle()
        connection.leaves()
    for _, dial in p.dials:
        dial.cancel()
    p.dials.clear()


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


async def test_second_round_of_hostile_requests_adds_no_objects(play: Playing) -> None:
    p = play("r0")
    server = Server(p)
    await all_of_them(p, server)
    after_one = objects()
    await all_of_them(p, server)
    services = p.gateway.services
    assert objects() - after_one < 50
    assert len(services.connections) == len(services.open_requests) == services.held.held_bytes == 0
    assert p.quiet()
