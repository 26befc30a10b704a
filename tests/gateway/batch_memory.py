"""Batches over a dictionary store, for tests that need no process and no socket."""

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from botocore.exceptions import ClientError

from functions.artifacts.s3 import StoredObject
from functions.gateway.batch.files import names
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.service import Batches
from functions.gateway.batch.shared import BatchServices
from tests.artifacts.memory_store import MemoryStore
from tests.gateway.rig import Rig


class RangedStore(MemoryStore):
    """Memory store that counts writes to know when an object was written, and that serves ranges."""

    is_closed = False
    before_new: Callable[[str], None] | None = None  # called before each `put_new` with its key

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, int] = {}
        self._writes = 0

    @property
    def client(self) -> "RangedStore":
        return self

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        super().put(key, body)
        self._writes += 1
        self.written[key] = self._writes

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        if self.before_new is not None:
            self.before_new(key)
        return super().put_new(key, body)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for one in super().list(prefix):
            yield StoredObject(one.key, one.size_bytes, float(self.written.get(one.key, 0)))

    def get_object(self, *, Bucket: str, Key: str, Range: str) -> dict[str, Any]:  # noqa: N803 - as S3 has them
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        first, last = Range.removeprefix("bytes=").split("-")
        return {"Body": BytesIO(self.objects[Key][int(first) : int(last) + 1])}

    def close(self) -> None:
        self.is_closed = True


def batches_of(rig: Rig, objects: MemoryStore, limits: BatchLimits | None = None) -> Batches:
    return Batches(rig.gateway.services, rig.gateway.handle, objects, limits or BatchLimits())  # type: ignore[arg-type]


def shared_of(batches: Batches) -> BatchServices:
    return batches.conductor._shared


def batch_id(number: int) -> str:
    return f"batch_{number:032x}"


def put_file(objects: MemoryStore, file_id: str, content: bytes, tenant: str = "acme") -> None:
    objects.put(names.content_key(tenant, file_id), content)
