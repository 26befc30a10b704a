"""A bus listener whose loop stalled reads the pending messages before it gives up the connection."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from valkey.asyncio.client import PubSub

from functions.fleet import valkey_bus
from functions.fleet.bus import BusUnavailable

SAYS = {"type": "message", "data": b"here"}


class Subscription:
    """Subscription whose reads use their full timeout unless the test sets an answer."""

    def __init__(self, *looks: dict[str, Any] | Callable[[], object] | None) -> None:
        self.looks = list(looks)

    async def get_message(self, timeout: float) -> dict[str, Any] | None:
        look = self.looks.pop(0)
        if isinstance(look, dict):
            return look
        await asyncio.sleep(timeout)
        if look is not None:
            look()
        return None

    async def ping(self) -> None: ...


async def _first(subscription: Subscription) -> bytes:
    return await anext(valkey_bus._receive(cast(PubSub, subscription)))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey_bus, "_TIMEOUT_S", 0.1)
    monkeypatch.setattr(valkey_bus, "_HUNG_AFTER_S", 0.15)


async def test_bus_messages_sent_during_a_stall_are_read() -> None:
    """The read's timer expires before the socket is read; giving up then would reload everything."""
    assert await _first(Subscription(None, lambda: time.sleep(0.5), SAYS)) == b"here"


async def test_a_bus_that_says_nothing_is_given_up() -> None:
    with pytest.raises(BusUnavailable):
        await _first(Subscription(None, None, None, None))
