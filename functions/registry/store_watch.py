"""Check every `LOOK_EVERY_S` that the object store answers: `shoal_store_up`.

Without the store, adapters that are not on a node's disk cannot be loaded, and the failure would only show at the
next request for one. Any answer counts, even "no such object": the requested object never exists. The client tries at
most twice, with its own timeouts.
"""

import asyncio

from functions.artifacts.errors import ArtifactError
from functions.artifacts.s3 import S3Store

LOOK_EVERY_S = 10.0
_NOWHERE = "up"


class StoreWatch:
    def __init__(self, store: S3Store) -> None:
        self._store = store
        self.is_up: bool | None = None  # None means not checked yet

    async def run(self) -> None:
        while True:
            await self.check_store()
            await asyncio.sleep(LOOK_EVERY_S)

    async def check_store(self) -> None:
        try:
            await asyncio.to_thread(self._store.size_of, _NOWHERE)
        except ArtifactError:
            self.is_up = False
        else:
            self.is_up = True
