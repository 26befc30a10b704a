"""Objects too large for memory: written in parts while the bytes arrive, read by ranges.

    LargeWriter   one multipart upload; holds at most one part. Until `finish` the object does not exist.
    read_range    some bytes of an object, so that a reader that takes hours holds no connection meanwhile
    abort_stale   ends uploads whose writer was killed; the store would keep their parts for ever

All calls block and share the client and exceptions of `s3`. Each part carries its sha256. The algorithm is announced
when the upload starts and the checksums are listed when it ends; Amazon S3 rejects the parts otherwise.
"""

import base64
import hashlib
import logging
import threading
from dataclasses import dataclass, field

from botocore.exceptions import BotoCoreError, ClientError

from functions.artifacts.errors import ArtifactMissing, StoreUnavailable
from functions.artifacts.s3 import NOT_FOUND, S3Store, code_of, not_written, unavailable

_log = logging.getLogger(__name__)
PART_BYTES = 8 * 1024 * 1024  # S3 takes 10,000 parts of at least 5 MiB: 78 GiB
_PAST_THE_END = ("InvalidRange", "416")
_NO_UPLOAD = ("NoSuchUpload", "404")


@dataclass(slots=True)
class LargeWriter:
    """Writer of one object. Several threads may call it; an `abort` waits for a call that is still running."""

    store: S3Store
    key: str
    written_bytes: int = 0
    _held: bytearray = field(default_factory=bytearray)
    _upload: str = ""
    _parts: list[tuple[str, str]] = field(default_factory=list)  # tag and checksum
    _is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def write(self, block: bytes) -> None:
        with self._lock:
            self._check_open()
            self._held += block
            self.written_bytes += len(block)
            while len(self._held) >= PART_BYTES:
                with memoryview(self._held) as held, held[:PART_BYTES] as part:
                    self._send(bytes(part))
                del self._held[:PART_BYTES]

    def finish(self) -> None:
        """Send what is left and complete the object, replacing an existing one under its key."""
        with self._lock:
            self._check_open()
            if not self._upload:
                self.store.put(self.key, bytes(self._held))
            else:
                if self._held:
                    self._send(bytes(self._held))
                self._complete()
            self._upload, self._held, self._is_over = "", bytearray(), True

    def abort(self) -> None:
        """Discard the upload; does nothing after `finish`. `abort_stale` removes parts that could not be discarded."""
        with self._lock:
            upload, self._upload, self._held, self._is_over = self._upload, "", bytearray(), True
            try:
                if upload:
                    _abort(self.store, self.key, upload)
            except (ClientError, BotoCoreError) as error:
                _log.warning("parts of %s could not be deleted yet: %s", self.key, error)

    def _check_open(self) -> None:
        if self._is_over:
            raise StoreUnavailable(f"the upload of {self.key} has ended: start a new one")

    def _complete(self) -> None:
        parts = [
            {"PartNumber": number, "ETag": tag, "ChecksumSHA256": checksum}
            for number, (tag, checksum) in enumerate(self._parts, 1)
        ]
        try:
            self.store.client.complete_multipart_upload(
                Bucket=self.store.bucket,
                Key=self.key,
                UploadId=self._upload,
                MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
            )
        except (ClientError, BotoCoreError) as error:
            raise not_written(self.key, error) from error

    def _send(self, part: bytes) -> None:
        client, bucket = self.store.client, self.store.bucket
        checksum = base64.b64encode(hashlib.sha256(part).digest()).decode()
        try:
            if not self._upload:
                begun = client.create_multipart_upload(Bucket=bucket, Key=self.key, ChecksumAlgorithm="SHA256")
                self._upload = begun["UploadId"]
            answer = client.upload_part(
                Bucket=bucket,
                Key=self.key,
                UploadId=self._upload,
                PartNumber=len(self._parts) + 1,
                Body=part,
                ChecksumSHA256=checksum,
            )
        except (ClientError, BotoCoreError) as error:
            raise not_written(self.key, error) from error
        self._parts.append((answer["ETag"], checksum))


def read_range(store: S3Store, key: str, start: int, length: int) -> bytes:
    """Return at most `length` bytes from `start`, fewer at the object's end and none past it. Raise ArtifactMissing if
    the object does not exist."""
    try:
        wanted = f"bytes={start}-{start + length - 1}"
        with store.client.get_object(Bucket=store.bucket, Key=key, Range=wanted)["Body"] as body:
            return body.read(length)
    except ClientError as error:
        if code_of(error) in _PAST_THE_END:
            return b""
        if code_of(error) in NOT_FOUND:
            raise ArtifactMissing(f"the store has no {key}") from error
        raise unavailable(key, error) from error
    except (BotoCoreError, OSError) as error:
        raise unavailable(key, error) from error


def abort_stale(store: S3Store, begun_before_unix_s: float) -> int:
    """Abort unfinished uploads that began before the given time. Return how many (at most one listing of 1,000)."""
    try:
        found = store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", ())
        stale = [upload for upload in found if upload["Initiated"].timestamp() < begun_before_unix_s]
        for upload in stale:
            _abort(store, upload["Key"], upload["UploadId"])
    except (ClientError, BotoCoreError) as error:
        raise unavailable("the unfinished uploads", error) from error
    return len(stale)


def _abort(store: S3Store, key: str, upload: str) -> None:
    """Abort a multipart upload; one that no longer exists is ignored."""
    try:
        store.client.abort_multipart_upload(Bucket=store.bucket, Key=key, UploadId=upload)
    except ClientError as error:
        if code_of(error) not in _NO_UPLOAD:
            raise
