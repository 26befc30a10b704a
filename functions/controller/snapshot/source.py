"""The publisher, put together for the local fleet: the registry over TLS, artifacts from S3 and the models directory.

Where base models lie depends on the engine asked for, which may change while the controller runs; so does, then, what
their addresses resolve to.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx

from functions.controller.autoscaling.standing import Teller
from functions.controller.autoscaling.wire import PoolsWire
from functions.controller.local.context import PlanContext
from functions.controller.local.seeding import open_store
from functions.controller.rollouts.following import RowsFollower
from functions.controller.rollouts.wire import RowsWire
from functions.controller.snapshot.publish import Publisher
from functions.controller.snapshot.registry_client import (
    EpochTaken,
    Heard,
    RegistryRefused,
    RegistryUnavailable,
    RegistryWire,
)
from functions.controller.snapshot.resolve import DigestReader, Resolver

REGISTRY_TIMEOUT_S = 10.0


class SnapshotSource:
    """Owned by one event loop."""

    def __init__(self, context: Callable[[], PlanContext], rows_file: Path, on_rows: Callable[[], None]) -> None:
        """`rows_file` keeps the registry's rows over a restart; `on_rows` is told when they are others."""
        self._context = context
        self.rows = RowsFollower(self.rows_wire, rows_file, on_rows)
        self._models_root: Path | None = None
        self._publisher: Publisher | None = None
        self._client: httpx.AsyncClient | None = None
        self._agents: httpx.AsyncClient | None = None

    async def publisher(self) -> Publisher:
        """The one for the present engine; OSError or ArtifactError where its files are not there."""
        context = self._context()
        if self._publisher is None or context.models_root != self._models_root:
            self._publisher = await self._make(context)
            self._models_root = context.models_root
        return self._publisher

    async def replicas(self) -> tuple[Heard, ...] | str:
        """What every replica said last, or why the registry does not tell."""
        try:
            return await (await self._wire()).fleet()
        except (RegistryUnavailable, RegistryRefused, EpochTaken) as error:
            return str(error)
        except OSError as error:
            return f"the registry cannot be asked: {error}"

    async def rows_wire(self) -> RowsWire:
        return RowsWire(await self._wire())

    async def pools_wire(self) -> PoolsWire:
        return PoolsWire(await self._wire())

    async def teller(self) -> Teller:
        """For agents on this machine, whose ports are open to holders of the token alone."""
        if self._agents is None:
            self._agents = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        return Teller(self._agents, await self._token(self._context()))

    async def close(self) -> None:
        for client in (self._client, self._agents):
            if client is not None:
                await client.aclose()

    async def _make(self, context: PlanContext) -> Publisher:
        store = await asyncio.to_thread(open_store, context)
        resolver = Resolver(DigestReader(store, context.models_root))
        return Publisher(wire=await self._wire(), resolver=resolver, rows=self.rows)

    async def _wire(self) -> RegistryWire:
        context = self._context()
        if self._client is None:
            verify = ssl.create_default_context(cafile=str(context.layout.ca_file))
            # No idle connections: a registry that drains would wait for their TLS to be closed by both sides.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(verify=verify, timeout=REGISTRY_TIMEOUT_S, limits=limits, trust_env=False)
        return RegistryWire(self._client, context.registry_url, await self._token(context))

    async def _token(self, context: PlanContext) -> str:
        return (await asyncio.to_thread(context.layout.secret("internal-token").read_text)).strip()
