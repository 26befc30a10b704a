"""An uploading client occupies one of few slots and so must send at a minimum speed."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial

import httpx
import pytest

from functions.gateway.batch.routes import add_routes
from functions.gateway.http.asgi import make_app
from tests.gateway.batch_memory import RangedStore, batches_of
from tests.gateway.rig import ACME_KEY, Rig

KIB = 1024
HEAD = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
)


async def uploaded(
    rig: Rig, block: bytes, blocks: int, block_s: float, *, others: int = 6, is_announced: bool = False
) -> httpx.Response:
    """Upload so many blocks at this pace beside so many other uploads, and return the answer."""
    batches = batches_of(rig, RangedStore())
    last = b"\r\n--x--\r\n"

    async def sent() -> AsyncIterator[bytes]:
        yield HEAD
        for _ in range(blocks):
            rig.clock.now_s += block_s
            yield block
        rig.clock.now_s += block_s
        yield last

    headers = {"authorization": f"Bearer {ACME_KEY}", "content-type": "multipart/form-data; boundary=x"}
    if is_announced:
        headers["content-length"] = str(len(HEAD) + blocks * len(block) + len(last))
    transport = httpx.ASGITransport(app=make_app(rig.gateway, [partial(add_routes, batches)]))
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        with ExitStack() as held:
            for number in range(others):
                held.enter_context(batches.uploads.reserved(f"t{number}"))
            answer = await client.post("/v1/files", content=sent(), headers=headers)
    assert not batches.uploads._held, "its place is free"
    batches.close_store()
    return answer


@pytest.mark.parametrize(("block_bytes", "blocks"), [(1, 40), (31 * KIB, 40)])
async def test_slow_upload_is_refused(block_bytes: int, blocks: int) -> None:
    answer = await uploaded(Rig(), bytes(block_bytes), blocks, block_s=1.0)
    assert answer.status_code == 408
    assert answer.json()["error"]["message"].startswith("The upload is slower than 32 KiB a second")


@pytest.mark.parametrize(("block_bytes", "blocks"), [(1, 29), (33 * KIB, 100)])
async def test_briefly_slow_or_fast_upload_is_accepted(block_bytes: int, blocks: int) -> None:
    answer = await uploaded(Rig(), bytes(block_bytes), blocks, block_s=1.0)
    assert (answer.status_code, answer.json()["bytes"]) == (200, block_bytes * blocks)


async def test_slow_upload_with_free_slots_is_accepted() -> None:
    answer = await uploaded(Rig(), b"x", 40, block_s=1.0, others=5)
    assert (answer.status_code, answer.json()["bytes"]) == (200, 40)


async def test_a_small_file_is_not_refused_at_its_last_byte() -> None:
    answer = await uploaded(Rig(), b"x", 3, block_s=10.0, is_announced=True)
    assert (answer.status_code, answer.json()["bytes"]) == (200, 3)
    answer = await uploaded(Rig(), b"x", 4, block_s=10.0, is_announced=True)
    assert answer.status_code == 408, "there were bytes to come"
