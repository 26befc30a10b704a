"""Lines of an input file, read block by block from the store; waits while the store is unreachable."""

import asyncio
import logging
from collections.abc import AsyncIterator

from functions.artifacts.errors import StoreUnavailable
from functions.decisions.batch.lines import LineCutter, RawLine
from functions.gateway.batch.files import names
from functions.gateway.batch.files.store import FileStore
from functions.telemetry.repeats import Repeats, kind_of

_log = logging.getLogger(__name__)
_AGAIN_S = 1.0
_CUT_BYTES = 8 * 1024  # bytes cut at a time: 8192 line ends take about 3 ms


async def lines_of(store: FileStore, tenant: str, file_id: str, max_line_bytes: int) -> AsyncIterator[RawLine]:
    """Yield the lines of a file, with pauses for the event loop, and wait while the store is unavailable.

    Raises ArtifactMissing if the file was deleted.
    """
    cutter, read_bytes, is_whole, repeats = LineCutter(max_line_bytes), 0, False, Repeats()
    while not is_whole:
        try:
            async for block in store.blocks(names.content_key(tenant, file_id), read_bytes):
                read_bytes += len(block)
                for begin in range(0, len(block), _CUT_BYTES):
                    for line in cutter.feed(block[begin : begin + _CUT_BYTES]):
                        yield line
                    await asyncio.sleep(0)
                if cutter.is_over:
                    return
            is_whole = True
        except StoreUnavailable as error:
            if repeats.is_new(kind_of(error), asyncio.get_running_loop().time()):
                _log.warning("file %s: waiting for the store: %s", file_id, error)
            await asyncio.sleep(_AGAIN_S)
    for line in cutter.end():
        yield line
