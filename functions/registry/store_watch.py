"""Whether the object store answers, looked at every `LOOK_EVERY_S`: `shoal_store_up`.

Adapters that are not on a node's disk cannot be loaded without it, and nobody would know before somebody asks for one.
Any answer counts, also that there is no such object: what is looked for is never there. The client tries twice at most
and gives up after its own timeouts.
"""

import asyncio

from functions.artifacts.errors import ArtifactError
from functions.artifacts.s3 import S3Store

LOOK_EVERY_S = 10.0
_NOWHERE = "up"


class StoreWatch:
    def __init__(self, store: S3Store) -> None:
        self._store = store
        self.is_up: bool | None = None  # None: not looked yet

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        try:
            await asyncio.to_thread(self._store.size_of, _NOWHERE)
        except ArtifactError:
            self.is_up = False
        else:
            self.is_up = True
