"""An object store in a dictionary: the S3 operations of publish, ingest and garbage collection, all counted."""

from collections.abc import Iterable, Iterator

from functions.artifacts.errors import ArtifactMissing
from functions.artifacts.s3 import StoredObject


class MemoryStore:
    bucket = "shoal-models"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def size_of(self, key: str) -> int | None:
        content = self.objects.get(key)
        return None if content is None else len(content)

    def read_small(self, key: str, max_bytes: int) -> bytes:
        content = self.objects.get(key)
        if content is None:
            raise ArtifactMissing(f"the store has no {key}")
        assert len(content) <= max_bytes
        return content

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        yield self.read_small(key, max_bytes)

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        if key in self.objects:
            return False
        self.put(key, body)
        return True

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        self.objects[key] = body

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for key in sorted(self.objects):
            content = self.objects.get(key)
            if content is not None and key.startswith(prefix):
                yield StoredObject(key, len(content), 0.0)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)
