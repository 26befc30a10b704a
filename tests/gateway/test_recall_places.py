"""Conversations are recalled only for requests that may run, and a few per tenant at a time."""

import asyncio
from collections import Counter

import pytest

from functions.api.ids import TenantId
from functions.api.snapshot import ConversationsPart, QuotaEntry, QuotaLimitsPart
from functions.gateway.chat.conversations import READ_AT_ONCE, recall_slots
from functions.gateway.errors import RequestRejected
from tests.gateway.composing import MakePlay, Shelf, Stage, counted
from tests.gateway.engine_rig import Client

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


class SlowShelf(Shelf):
    """Shelf that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.under_way = self.most = 0
        self.answers = asyncio.Event()

    async def read(self, name: str) -> bytes | None:
        self.reads += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.answers.wait()
        self.under_way -= 1
        return await super().read(name)


def stage_with(play: MakePlay, **limits: int) -> tuple[Stage, SlowShelf]:
    stage = Stage(
        play,
        sections={"quotas": (QuotaEntry("enterprise", limits=QuotaLimitsPart(**limits)),)},
        conversations=ConversationsPart(),
    )
    shelf = SlowShelf()
    chat = stage.chat
    assert chat.conversations is not None
    chat.conversations._store = shelf
    return stage, shelf


def send_chats(stage: Stage, chats: int) -> list[Client]:
    return [stage.send_chat(header_x_session_id="s1") for _ in range(chats)]


async def test_exhausted_quota_recalls_no_conversation(play: MakePlay) -> None:
    stage, shelf = stage_with(play, requests_per_minute=2)
    shelf.answers.set()
    for _ in range(2):
        send_chats(stage, 1)
        await stage.says("kept")
    refused = send_chats(stage, 20)
    await stage.settle()
    assert Counter(client.status for client in refused) == {429: 20} and shelf.reads == 2
    assert b"retry-after-ms" in refused[0].headers
    assert counted(stage, 'shoal_quota_rejections_total{dimension="requests_per_minute"}') == 20


async def test_exhausted_quota_parses_no_body(play: MakePlay, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, _ = stage_with(play, requests_per_minute=1)
    stage.send_chat()
    parsed: list[bytes] = []
    monkeypatch.setattr(stage.play.gateway.services.intake, "read_body", lambda _route, body: parsed.append(body))
    assert stage.send_chat(header_x_session_id="s1").status == 429 and not parsed


async def test_burst_recalls_a_bounded_number_of_conversations(play: MakePlay) -> None:
    stage, shelf = stage_with(play, concurrent_requests=3)
    burst = send_chats(stage, 50)
    await stage.settle()
    assert shelf.under_way == shelf.most == READ_AT_ONCE
    shelf.answers.set()
    for _ in range(20):
        await stage.settle()
    assert shelf.most == READ_AT_ONCE
    assert Counter(client.status for client in burst) == {None: 3, 429: 47}, "three are with engines"
    assert shelf.reads < 2 * READ_AT_ONCE, "the rest was refused before anything was read"
    assert counted(stage, 'shoal_quota_rejections_total{dimension="concurrent_requests"}') == 47


async def test_recalls_of_one_tenant_do_not_delay_anothers() -> None:
    places, held = recall_slots(), asyncio.Event()

    async def holds() -> None:
        async with places.reserved(ACME):
            await held.wait()

    holders = [asyncio.ensure_future(holds()) for _ in range(READ_AT_ONCE + 1)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60), places.reserved(GLOBEX):
        assert not any(holder.done() for holder in holders)
    held.set()
    await asyncio.gather(*holders)
    assert len(places) == 0, "nothing is remembered of who is gone"


async def test_recall_without_a_slot_in_time_is_503() -> None:
    places, held = recall_slots(wait_s=0.0), asyncio.Event()

    async def holds() -> None:
        async with places.reserved(ACME):
            await held.wait()

    holders = [asyncio.ensure_future(holds()) for _ in range(READ_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(RequestRejected, match="Try again shortly") as refused:
        async with places.reserved(ACME):
            raise AssertionError("there is no place")
    assert (refused.value.answer.status, refused.value.answer.code) == (503, "conversation_unavailable")
    held.set()
    await asyncio.gather(*holders)
    assert len(places) == 0
