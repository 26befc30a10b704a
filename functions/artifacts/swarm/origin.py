"""A chunk from the store (S3), at this node's download rate. Blocks: the caller gives it a thread."""

from collections.abc import Callable
from dataclasses import dataclass

from functions.artifacts.locations import chunk_key
from functions.artifacts.manifest import Chunk
from functions.artifacts.s3 import S3Store
from functions.artifacts.swarm.bandwidth import Bandwidth


@dataclass(frozen=True, slots=True)
class Origin:
    store: S3Store
    rate: Bandwidth

    def read(self, chunk: Chunk, sleep: Callable[[float], None]) -> bytes:
        """The chunk's bytes, not verified; ArtifactError. `sleep` may raise to give it up."""
        content = bytearray()
        for block in self.store.stream(chunk_key(chunk.sha256), chunk.size_bytes):
            content += block
            sleep(self.rate.reserve(len(block)))
        return bytes(content)
