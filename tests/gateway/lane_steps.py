"""One step that many fast-lane scenarios share."""

from tests.gateway import sse
from tests.gateway.client_rig import (
    CHAT_BODY,
    STREAM_BODY,
    Connection,
    post,
)
from tests.gateway.hello import END, HELLO
from tests.gateway.rig import BOT_V1


async def answered(connection: Connection, stream: bool = False) -> None:
    """Send one hot request and let it be answered."""
    connection >> post(STREAM_BODY if stream else CHAT_BODY)
    await connection.play.settle()
    engine = await connection.play.connects() if connection.play.dials else connection.play.engine
    if stream:
        engine.begins_stream()
        engine.streams(HELLO, END)
        engine.ends_stream()
    else:
        engine.answers(200, sse.whole(BOT_V1))
