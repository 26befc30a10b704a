"""Needs of the policies in force that a gateway cannot meet, as reported to the controller."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from functions.api.ids import Digest, TenantId
from functions.api.snapshot_entries import PoolEntry, TenantEntry, ToolEntry
from functions.artifacts.errors import ArtifactMissing
from functions.decisions.catalogue import Catalogue
from functions.fleet.pool_board import Lacking, PoolBoard
from functions.fleet.pool_heartbeat import MAX_NEEDS, UnmetNeed
from functions.gateway import feeds
from functions.gateway.needs import unmet_needs
from functions.gateway.prefix.tokenizer_source import TokenizerSource
from tests.gateway import rig
from tests.gateway.rig import DIGEST_V1, POOL, Rig


def tools(*secrets: str) -> tuple[ToolEntry, ...]:
    return tuple(
        ToolEntry(f"tool-{number}", "", "https://tools.example.com/", "{}", secret=secret)
        for number, secret in enumerate(secrets)
    )


def unmet_in(
    catalogue: Catalogue, tokenizers: Path | None = None, secrets: Path | None = None
) -> list[tuple[str, str]]:
    source = TokenizerSource(tokenizers, None, lambda: 0.0, lambda: 0.5) if tokenizers is not None else None
    return [(need.what, need.subject) for need in unmet_needs(catalogue, source, secrets)]


NOT_SET = "neither SHOAL_GATEWAY_TOKENIZERS_DIR nor SHOAL_GATEWAY_TOKENIZERS_CACHE_DIR is set"
SENT = (rig.routing(prefix_source="sent"),)


def test_missing_pool_tokenizer_is_a_need(tmp_path: Path) -> None:
    catalogue = rig.catalogue()
    assert unmet_needs(catalogue, None, None) == (UnmetNeed("tokenizer", POOL, NOT_SET),)
    assert unmet_in(catalogue, tmp_path) == [("tokenizer", POOL)]
    (tmp_path / POOL).mkdir()
    (tmp_path / POOL / "config.json").write_text("{}")
    assert unmet_in(catalogue, tmp_path) == [("tokenizer", POOL)], "a model's config is no tokenizer"
    (tmp_path / POOL / "config.json").write_text('{"shoal_tokenizer": "builtin"}')
    assert not unmet_in(catalogue, tmp_path)
    (tmp_path / POOL / "config.json").unlink()
    (tmp_path / POOL / "tokenizer.json").write_text("{}")
    assert not unmet_in(catalogue, tmp_path)


async def test_tokenizer_missing_in_the_store_is_a_need_until_it_arrives(tmp_path: Path) -> None:
    there = False

    def fetch(digest: Digest, _in_use: Collection[Digest]) -> Path:
        if not there:
            raise ArtifactMissing(f"no tokenizer of {digest}")
        return tmp_path

    now_s = 0.0
    source, catalogue = TokenizerSource(None, fetch, lambda: now_s, lambda: 0.5), rig.catalogue()
    assert unmet_needs(catalogue, source, None) == (), (
        "on its way: every gateway that starts would be a failure for seconds"
    )
    await source.refresh(catalogue)
    (need,) = unmet_needs(catalogue, source, None)
    assert (need.what, need.subject, need.why) == ("tokenizer", POOL, f"no tokenizer of {DIGEST_V1}")
    there, now_s = True, 3600.0
    await source.refresh(catalogue)
    assert unmet_needs(catalogue, source, None) == ()


def test_pool_without_exact_prefixes_needs_no_tokenizer() -> None:
    assert not unmet_in(rig.catalogue(routing=SENT))
    assert not unmet_in(rig.catalogue(pools=(PoolEntry(POOL, context_window_tokens=2048, task="embed"),)))


def test_missing_tool_secret_is_a_need(tmp_path: Path) -> None:
    tenants = (TenantEntry(TenantId("acme"), "enterprise", (POOL,), tools=tools("weather", "", "weather", "maps")),)
    catalogue = rig.catalogue(routing=SENT, tenants=tenants, keys=(), models=())
    both = [("tool_secret", "acme/maps"), ("tool_secret", "acme/weather")]
    assert unmet_in(catalogue) == unmet_in(catalogue, secrets=tmp_path) == both
    (tmp_path / "acme.maps").write_text("as a mounted Secret has it")
    assert unmet_in(catalogue, secrets=tmp_path) == both[1:]
    (tmp_path / "acme.maps").unlink()
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "weather").write_text("t0ken")
    assert unmet_in(catalogue, secrets=tmp_path) == both[:1]
    (tmp_path / "acme.maps").write_text("as a mounted Secret has it")
    assert unmet_in(catalogue, secrets=tmp_path) == []


def test_number_of_needs_is_bounded() -> None:
    names = [f"t{number:04}" for number in range(MAX_NEEDS + 10)]
    tenants = tuple(TenantEntry(TenantId(name), "enterprise", (), tools=tools("s")) for name in names)
    found = unmet_in(rig.catalogue(routing=SENT, tenants=tenants, keys=(), models=()))
    assert len(found) == MAX_NEEDS
    assert found[0] == ("tool_secret", "t0000/s")


class Board:
    """The registry as the other end of the bus."""

    def __init__(self) -> None:
        self.board = PoolBoard()
        self.heard = asyncio.Event()

    async def publish_pools(self, message: bytes) -> None:
        assert self.board.receive_message(message, 0.0)
        self.heard.set()


async def test_needs_are_published_over_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_NEEDS_INTERVAL_S", 0.001)
    services, board = Rig().gateway.services, Board()
    feed = asyncio.ensure_future(feeds.publish_needs(services, board, None, tmp_path))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(30):
            await board.heard.wait()
        lacking = Lacking("tokenizer", POOL, 1, NOT_SET)
        assert board.board.needs(0.0).lacking == (lacking,)
        assert not board.board.sums(0.0)
    finally:
        feed.cancel()
