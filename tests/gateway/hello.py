"""Tokens shared by all scenarios: those that an engine streams and those that the client must receive."""

from collections.abc import Callable

from tests.gateway import sse
from tests.gateway.engine_rig import Engine, Play
from tests.gateway.rig import BOT_V1

Playing = Callable[..., Play]
HELLO = sse.role(BOT_V1) + sse.token(BOT_V1, "hello")
PUBLIC_HELLO = sse.role("acme/bot") + sse.token("acme/bot", "hello")
END = sse.finish(BOT_V1) + sse.usage(BOT_V1) + sse.DONE
PUBLIC_END = sse.finish("acme/bot") + sse.DONE


def finishes(engine: Engine) -> None:
    engine.begins_stream()
    engine.streams(HELLO, END)
    engine.ends_stream()
