"""Compiled code for a node's weights, fetched after the weights and laid out for the engine.

It only spares the engine's next start its compilation. Any failure is logged, and the engine then compiles by itself.
The number of packs and the time are therefore bounded, and the weights come first.

Neighbours: `functions.artifacts.compiled` knows the store's and the engine's folders; `runner` calls this module.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import compiled
from functions.artifacts.errors import ArtifactError
from functions.artifacts.s3 import S3Store

MOST_LAID_OUT = 4  # the newest that fit
TIMEOUT_S = 120.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompiledFor:
    """Folder in which an engine looks for compiled code, and the engine and accelerator to match (empty: any)."""

    cache_root: Path
    wanted: str = ""


async def fetch_compiled(
    store: S3Store, weights: Digest, to: CompiledFor, fetch: Callable[[Digest], Awaitable[Path]]
) -> int:
    """Fetch the newest compile caches of the weights that match `to`, unpack them for the engine and return the number
    of files written. Errors of a store or pack and a timeout are logged, not raised; the number is then 0."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            index = await asyncio.to_thread(compiled.read_index, store, weights)
            fitting = [one for one in index.companions if one.fits(to.wanted)][-MOST_LAID_OUT:]
            written = 0
            for companion in fitting:
                folder = await fetch(Digest(companion.digest))
                written += await asyncio.to_thread(compiled.lay_out, folder / compiled.PACK_NAME, to.cache_root)
    except (ArtifactError, TimeoutError, OSError) as error:
        _log.warning("compiled code for %s is unavailable, so its engine compiles anew: %r", weights[:19], error)
        return 0
    _log.info("%d packs for %s: %d files laid out at %s", len(fitting), weights[:19], written, to.cache_root)
    return written
