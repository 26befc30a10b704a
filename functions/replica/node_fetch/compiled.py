"""What was compiled for the weights of a node, fetched after them and laid out for its engine.

It spares the engine's next start its compilation, and nothing more: whatever goes wrong is said, and the engine
compiles for itself. So it is bounded in number and time, and comes after the weights.

Neighbours: `functions.artifacts.compiled` knows the store's and the engine's folders; `runner` calls.
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
    """Where an engine looks for what was compiled, and for which engine and accelerator (empty: any)."""

    cache_root: Path
    wanted: str = ""


async def bring(store: S3Store, weights: Digest, to: CompiledFor, fetch: Callable[[Digest], Awaitable[Path]]) -> int:
    """Files that were laid out; never raises for what a store or a pack does. `fetch` gives an artifact's folder."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            index = await asyncio.to_thread(compiled.read_index, store, weights)
            fitting = [one for one in index.companions if one.fits(to.wanted)][-MOST_LAID_OUT:]
            written = 0
            for companion in fitting:
                folder = await fetch(Digest(companion.digest))
                written += await asyncio.to_thread(compiled.lay_out, folder / compiled.PACK_NAME, to.cache_root)
    except (ArtifactError, TimeoutError, OSError) as error:
        _log.warning("what was compiled for %s does not come, and its engine compiles anew: %r", weights[:19], error)
        return 0
    _log.info("%d packs for %s: %d files laid out at %s", len(fitting), weights[:19], written, to.cache_root)
    return written
