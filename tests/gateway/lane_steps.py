"""One step that many scenarios of the lane share."""

from tests.gateway import sse
from tests.gateway.client_rig import (
    CHAT_BODY,
    STREAM_BODY,
    Wire,
    post,
)
from tests.gateway.hello import END, HELLO
from tests.gateway.world import BOT_V1


async def answered(wire: Wire, stream: bool = False) -> None:
    """One hot request, answered."""
    wire >> post(STREAM_BODY if stream else CHAT_BODY)
    await wire.play.settle()
    engine = await wire.play.connects() if wire.play.dials else wire.play.engine
    if stream:
        engine.begins_stream()
        engine.streams(HELLO, END)
        engine.ends_stream()
    else:
        engine.answers(200, sse.whole(BOT_V1))
