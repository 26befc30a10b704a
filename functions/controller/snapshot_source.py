"""The publisher, put together for the local fleet: the registry over TLS, artifacts from S3 and the models directory.

Where base models lie depends on the engine asked for, which may change while the controller runs; so does, then, what
their addresses resolve to.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx

from functions.controller.local.context import PlanContext
from functions.controller.local.seeding import open_store
from functions.controller.publish import Publisher, PublishOutcome
from functions.controller.publish_wire import RegistryWire
from functions.controller.resolve import DigestReader, Resolver

REGISTRY_TIMEOUT_S = 10.0


class SnapshotSource:
    """Owned by one event loop."""

    def __init__(self, context: Callable[[], PlanContext]) -> None:
        self._context = context
        self._models_root: Path | None = None
        self._publisher: Publisher | None = None
        self._client: httpx.AsyncClient | None = None

    async def publish(self) -> PublishOutcome:
        """Compile and publish what changed; never raises for what may pass."""
        context = self._context()
        if self._publisher is None or context.models_root != self._models_root:
            self._publisher = await self._make(context)
            self._models_root = context.models_root
        return await self._publisher.publish_if_changed(context.layout.config_dir)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _make(self, context: PlanContext) -> Publisher:
        if self._client is None:
            verify = ssl.create_default_context(cafile=str(context.layout.ca_file))
            # No idle connections: a registry that drains would wait for their TLS to be closed by both sides.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(verify=verify, timeout=REGISTRY_TIMEOUT_S, limits=limits, trust_env=False)
        token = await asyncio.to_thread(context.layout.secret("internal-token").read_text)
        store = await asyncio.to_thread(open_store, context)
        resolver = Resolver(DigestReader(store, context.models_root))
        return Publisher(wire=RegistryWire(self._client, context.registry_url, token.strip()), resolver=resolver)
