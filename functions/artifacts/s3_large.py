"""Objects too large for memory: written as parts while their bytes come, read by ranges.

    LargeWriter   one multipart upload; holds at most one part. Until `finish` the object does not exist.
    read_range    some bytes of an object, so that whoever reads for hours holds no connection meanwhile
    abort_stale   uploads whose writer was killed: the store keeps their parts for ever otherwise

All block, as `s3` does, whose client and exceptions these share; each part carries its sha256.
"""

import base64
import hashlib
from dataclasses import dataclass, field

from botocore.exceptions import BotoCoreError, ClientError

from functions.artifacts.errors import ArtifactMissing
from functions.artifacts.s3 import NOT_FOUND, S3Store, code_of, unavailable

PART_BYTES = 8 * 1024 * 1024  # S3 takes 10,000 parts of at least 5 MiB: 78 GiB
_PAST_THE_END = ("InvalidRange", "416")


@dataclass(slots=True)
class LargeWriter:
    store: S3Store
    key: str
    written_bytes: int = 0
    _held: bytearray = field(default_factory=bytearray)
    _upload: str = ""
    _tags: list[str] = field(default_factory=list)

    def write(self, block: bytes) -> None:
        self._held += block
        self.written_bytes += len(block)
        while len(self._held) >= PART_BYTES:
            with memoryview(self._held) as held, held[:PART_BYTES] as part:
                self._send(bytes(part))
            del self._held[:PART_BYTES]

    def finish(self) -> None:
        """The object is there, whatever was under its key before."""
        if not self._upload:
            self.store.put(self.key, bytes(self._held))
            return
        if self._held:
            self._send(bytes(self._held))
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(self._tags, 1)]
        try:
            self.store.client.complete_multipart_upload(
                Bucket=self.store.bucket,
                Key=self.key,
                UploadId=self._upload,
                MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
            )
        except (ClientError, BotoCoreError) as error:
            raise unavailable(self.key, error) from error

    def abort(self) -> None:
        """Forget what was sent. Does nothing where nothing was."""
        upload, self._upload, self._held = self._upload, "", bytearray()
        if not upload:
            return
        try:
            self.store.client.abort_multipart_upload(Bucket=self.store.bucket, Key=self.key, UploadId=upload)
        except (ClientError, BotoCoreError) as error:
            raise unavailable(self.key, error) from error

    def _send(self, part: bytes) -> None:
        client, bucket = self.store.client, self.store.bucket
        try:
            if not self._upload:
                self._upload = client.create_multipart_upload(Bucket=bucket, Key=self.key)["UploadId"]
            answer = client.upload_part(
                Bucket=bucket,
                Key=self.key,
                UploadId=self._upload,
                PartNumber=len(self._tags) + 1,
                Body=part,
                ChecksumSHA256=base64.b64encode(hashlib.sha256(part).digest()).decode(),
            )
        except (ClientError, BotoCoreError) as error:
            raise unavailable(self.key, error) from error
        self._tags.append(answer["ETag"])


def read_range(store: S3Store, key: str, start: int, length: int) -> bytes:
    """At most `length` bytes from `start`; none past the end. ArtifactMissing where there is no such object."""
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
    """Abort uploads that began before; how many (of one listing's thousand)."""
    try:
        found = store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", ())
        stale = [upload for upload in found if upload["Initiated"].timestamp() < begun_before_unix_s]
        for upload in stale:
            store.client.abort_multipart_upload(Bucket=store.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    except (ClientError, BotoCoreError) as error:
        raise unavailable("the unfinished uploads", error) from error
    return len(stale)
