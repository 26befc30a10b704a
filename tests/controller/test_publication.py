"""Times of publication: at once after a change, soon while something is missing, otherwise periodically."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from functions.artifacts.publish import read_pointer
from functions.controller.local.context import PlanContext, valkey_server, weed
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan_servers import s3
from functions.controller.local.ports import GRPC_ABOVE, plan_ports
from functions.controller.local.prepare.secret_files import ensure_secrets
from functions.controller.local.settings import LocalSettings
from functions.controller.snapshot.publication import HELD_RETRY_S, Publication, open_store
from functions.controller.snapshot.publish import PublishOutcome
from tests.controller.conftest import PATIENCE_S, Shop, free_port


def no_context() -> PlanContext:
    raise AssertionError("publishing alone needs no context")


class Attempts:
    """Publishes nothing; counts calls and returns a prepared outcome."""

    def __init__(self) -> None:
        self.count = 0
        self.outcome = PublishOutcome("published", "published epoch 1", epoch=1, complete=True)

    async def __call__(self) -> PublishOutcome:
        self.count += 1
        return self.outcome


@asynccontextmanager
async def publishing(
    attempts: Attempts, changed: asyncio.Event, retry_s: float, resync_s: float
) -> AsyncIterator[Publication]:
    publication = Publication(attempts, no_context, Path())
    task = asyncio.get_running_loop().create_task(publication.run(changed, retry_s, resync_s))
    yield publication
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_publishes_at_the_start_and_at_once_after_a_change() -> None:
    attempts, changed = Attempts(), asyncio.Event()
    async with publishing(attempts, changed, retry_s=60, resync_s=60) as publication:
        await until(lambda: attempts.count == 1)
        assert publication.last.epoch == 1
        changed.set()
        await until(lambda: attempts.count == 2)
        await asyncio.sleep(0.2)
        assert attempts.count == 2


async def test_publication_is_retried_soon_while_something_is_missing() -> None:
    attempts = Attempts()
    attempts.outcome = PublishOutcome("unavailable", "the registry is away")
    async with publishing(attempts, asyncio.Event(), retry_s=0.05, resync_s=60):
        await until(lambda: attempts.count >= 3)


async def test_unchanged_snapshot_is_republished_periodically() -> None:
    """A registry that lost its state gets it back."""
    attempts = Attempts()
    async with publishing(attempts, asyncio.Event(), retry_s=60, resync_s=0.05):
        await until(lambda: attempts.count >= 3)


@pytest.mark.servers
async def test_adapters_are_published_to_a_real_s3_and_replaced_when_git_has_others(
    shop: Shop, layout: StateLayout, tmp_path: Path
) -> None:
    ensure_secrets(layout)
    a, b, c, d = (free_port(above=GRPC_ABOVE) for _ in range(4))
    settings = LocalSettings(port_s3=a, port_s3_volume=b, port_s3_filer=c, port_s3_master=d)
    context = PlanContext(
        layout=layout, ports=plan_ports(settings), python=settings.python, engine_python=settings.python, weed=weed(),
        valkey_server=valkey_server(), drain_timeout_s=1.0, models_root=layout.models_dir,
    )  # fmt: skip
    adapter = tmp_path / "adapters" / "acme" / "bot" / "v1"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    await shop.operations.converge({"s3": s3(context)})
    await shop.reaches("s3", "ready")

    async def s3_is_ready() -> bool:
        return True

    digests = []
    for content in ("{}", '{"r": 4}'):
        (adapter / "adapter_config.json").write_text(content)
        publication, changed = Publication(Attempts(), lambda: context, tmp_path / "adapters"), asyncio.Event()
        async with asyncio.timeout(60):
            await publication.seed(s3_is_ready, changed, retry_s=0.2)
        assert changed.is_set()
        assert publication.seeded == ("s3://shoal-models/acme/bot/v1",)
        with contextlib.closing(open_store(context)) as store:
            digests.append(await asyncio.to_thread(read_pointer, store, "s3://shoal-models/acme/bot/v1"))
    assert digests[0] != digests[1]


async def test_held_channels_are_checked_at_growing_intervals_until_a_change() -> None:
    """Each pass compiles everything."""
    attempts, changed = Attempts(), asyncio.Event()
    attempts.outcome = PublishOutcome("unchanged", "", held=("acme/bot:stable stays v1 until v2 is loaded",))
    began_s = asyncio.get_running_loop().time()
    async with publishing(attempts, changed, retry_s=60, resync_s=60):
        await asyncio.sleep(2.0)
        tries = attempts.count
        assert tries <= 1 + (asyncio.get_running_loop().time() - began_s) / HELD_RETRY_S * 0.7
        changed.set()
        await until(lambda: attempts.count > tries)
