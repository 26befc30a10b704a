"""A light, steady load on a fleet while a test changes it; each failed request is recorded."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.drills.streams import Stream, run_stream
from tests.fleets import Fleet

PAUSE_S = 0.05


@dataclass(slots=True)
class Load:
    """Results of the load; `failed` has each stream that did not end completely."""

    asked: int = 0
    failed: list[Stream] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)  # by replica

    def check(self, at_least: int = 1) -> None:
        assert not self.failed, f"{len(self.failed)} of {self.asked} failed: {self.failed[:3]}"
        assert self.asked >= at_least


@contextmanager
def background_load(fleet: Fleet, models: dict[str, str], words: int = 8) -> Iterator[Load]:
    """Run streams in sequence for each model; `models` maps a model to the tenant whose key is used."""
    load, over = Load(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_run(fleet, models, words, load, over)))
    thread.start()
    try:
        yield load
    finally:
        over.set()
        thread.join(120)


async def _run(fleet: Fleet, models: dict[str, str], words: int, load: Load, over: threading.Event) -> None:
    async with asyncio.TaskGroup() as group:
        for model, tenant in models.items():
            group.create_task(_ask(fleet, model, tenant, words, load, over))


async def _ask(fleet: Fleet, model: str, tenant: str, words: int, load: Load, over: threading.Event) -> None:
    async with fleet.async_client(tenant, timeout_s=120.0) as client:
        while not over.is_set():
            stream = await run_stream(client, Stream(model, words=words))
            load.asked += 1
            load.served[stream.replica] = load.served.get(stream.replica, 0) + 1
            if not stream.intact:
                load.failed.append(stream)
            await asyncio.sleep(PAUSE_S)


def status_of(client: httpx.Client, model: str, max_tokens: int = 4) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens}
    return client.post("/chat/completions", json=body).status_code
