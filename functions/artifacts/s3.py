"""Object store over S3: few operations, one mapping of foreign exceptions, and a limit on every wait.

One `S3Store` holds one client, which threads may share. All calls block, so callers in an event loop use
`asyncio.to_thread`. `put_new` writes only where no object exists (`If-None-Match: *`), so two publishers of the same
content cannot harm each other. Every write carries its sha256, and the store rejects a body that does not match.
Without it, SeaweedFS replaces an object by an empty one if the sender of an upload is killed
(test_killed_upload_leaves_existing_objects).
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, StoreRefused, StoreUnavailable, StoreUnfit

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client  # from the type stubs, which only development installs

DEFAULT_BUCKET = "shoal-models"
_CREDENTIALS_MAX_BYTES = 4096
_PAGE_KEYS = 1000  # S3's own limit for one listing or one deletion
_READ_BYTES = 256 * 1024
NOT_FOUND = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")
_ALREADY_THERE = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_CONDITION_UNKNOWN = ("NotImplemented", "501")
_REFUSALS = (400, 403)
_BROKEN_ON_THE_WAY = (  # status 400, but a repeated write may succeed
    "RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
)  # fmt: skip


class S3Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:  # keeps the secret out of logs
        return f"S3Credentials(access_key_id={self.access_key_id!r}, secret_access_key=<hidden>)"


@dataclass(frozen=True, slots=True)
class S3Settings:
    endpoint_url: str
    credentials: S3Credentials
    bucket: str = DEFAULT_BUCKET
    region: str = "us-east-1"  # SeaweedFS ignores it; the signature needs one
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 20.0  # per socket read: bounds how long a stalled store blocks a thread
    max_attempts: int = 3  # in botocore, with jitter, for 500, 503 and broken connections
    max_connections: int = 32  # kept open; several fetches run at once, each reading several chunks
    needs_conditions: bool = False  # raise StoreUnfit instead of emulating conditional writes by a check and a write


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size_bytes: int
    modified_unix_s: float


class CredentialsInvalid(Exception):
    """The credentials file is missing or wrong: correct the file."""


def load_credentials(file: Path) -> S3Credentials:
    """Load credentials from a file of `{"access_key_id": …, "secret_access_key": …}`; raise CredentialsInvalid if it is
    missing or wrong."""
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(_CREDENTIALS_MAX_BYTES), type=S3Credentials)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialsInvalid(f"S3 credentials in {file}: {error}") from error


@dataclass(slots=True)
class S3Store:
    settings: S3Settings
    _client: "S3Client" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self._client = boto3.session.Session().client(
            "s3",
            endpoint_url=settings.endpoint_url,
            aws_access_key_id=settings.credentials.access_key_id,
            aws_secret_access_key=settings.credentials.secret_access_key,
            region_name=settings.region,
            config=Config(
                connect_timeout=settings.connect_timeout_s,
                read_timeout=settings.read_timeout_s,
                max_pool_connections=settings.max_connections,
                retries={"total_max_attempts": settings.max_attempts, "mode": "standard"},
                s3={"addressing_style": "path"},
                # Every byte is verified against its sha256, so further CRCs would only cost time.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    @property
    def bucket(self) -> str:
        return self.settings.bucket

    @property
    def client(self) -> "S3Client":
        """The underlying client, for operations outside this class (`s3_large`)."""
        return self._client

    def ensure_bucket(self) -> None:
        """Create the bucket unless it exists. Raise StoreUnavailable if the store does not answer properly."""
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except ClientError as error:
            if code_of(error) not in NOT_FOUND:
                raise unavailable("bucket " + self.bucket, error) from error
            self._create_bucket()
        except BotoCoreError as error:
            raise unavailable("bucket " + self.bucket, error) from error

    def size_of(self, key: str) -> int | None:
        """Return the object's size in bytes, or None if it does not exist. Raise StoreUnavailable."""
        try:
            return self._client.head_object(Bucket=self.bucket, Key=key)["ContentLength"]
        except ClientError as error:
            if code_of(error) in NOT_FOUND:
                return None
            raise unavailable(key, error) from error
        except BotoCoreError as error:
            raise unavailable(key, error) from error

    def read_small(self, key: str, max_bytes: int) -> bytes:
        """Return a whole object of at most `max_bytes`; raise ArtifactMissing if it does not exist, ArtifactCorrupt if
        it is larger."""
        return b"".join(self.stream(key, max_bytes))

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        """Yield the object's bytes in blocks; raise ArtifactMissing if it does not exist, ArtifactCorrupt if there are
        more than `max_bytes`."""
        received = 0
        try:
            body = self._client.get_object(Bucket=self.bucket, Key=key)["Body"]
            with body:
                for block in body.iter_chunks(_READ_BYTES):
                    received += len(block)
                    if received > max_bytes:
                        raise ArtifactCorrupt(f"{key} has more than the {max_bytes} bytes it should have")
                    yield block
        except ClientError as error:
            if code_of(error) in NOT_FOUND:
                raise ArtifactMissing(f"the store has no {key}") from error
            raise unavailable(key, error) from error
        except (BotoCoreError, OSError) as error:
            raise unavailable(key, error) from error

    def put_new(self, key: str, body: bytes, *, sha256: str | None = None) -> bool:
        """Write the object unless it exists; return True if it was written. `sha256` (hex) saves hashing the body.
        Raise StoreUnfit if the store cannot do this in one step and the settings need it; otherwise it is checked
        first, then written."""
        try:
            self._client.put_object(
                Bucket=self.bucket, Key=key, Body=body, ChecksumSHA256=_checksum(body, sha256), IfNoneMatch="*"
            )
        except ClientError as error:
            if code_of(error) in _ALREADY_THERE:
                return False
            if code_of(error) in _CONDITION_UNKNOWN and self.settings.needs_conditions:
                raise StoreUnfit(f"{self.bucket} does not support conditional writes (If-None-Match: *)") from error
            if code_of(error) in _CONDITION_UNKNOWN:  # older store: check, then write; content is equal
                return self._put_after_looking(key, body)
            raise not_written(key, error) from error
        except BotoCoreError as error:
            raise unavailable(key, error) from error
        return True

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        """Write the object, replacing an existing one. `sha256` (hex) saves hashing the body. Raise StoreRefused if the
        store would reject the same write again, else StoreUnavailable."""
        checksum = _checksum(body, sha256)
        try:
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body, ChecksumSHA256=checksum)
        except (ClientError, BotoCoreError) as error:
            raise not_written(key, error) from error

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with `prefix`, page by page, in the order of keys."""
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=prefix, PaginationConfig={"PageSize": _PAGE_KEYS}
            )
            for page in pages:
                for found in page.get("Contents", ()):
                    yield StoredObject(found["Key"], found["Size"], found["LastModified"].timestamp())
        except (ClientError, BotoCoreError) as error:
            raise unavailable(f"the listing of {prefix}", error) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; missing ones are ignored. Raise StoreUnavailable if one was not deleted."""
        waiting = iter(keys)
        while page := list(islice(waiting, _PAGE_KEYS)):
            try:
                answer = self._client.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in page], "Quiet": True}
                )
            except (ClientError, BotoCoreError) as error:
                raise unavailable(f"the deletion of {len(page)} objects", error) from error
            for failed in answer.get("Errors", ()):
                if failed.get("Code") not in NOT_FOUND:
                    raise StoreUnavailable(f"the store did not delete {failed.get('Key')}: {failed.get('Message')}")

    def close(self) -> None:
        self._client.close()

    def _put_after_looking(self, key: str, body: bytes) -> bool:
        if self.size_of(key) is not None:
            return False
        self.put(key, body)
        return True

    def _create_bucket(self) -> None:
        try:
            self._client.create_bucket(Bucket=self.bucket)
        except ClientError as error:
            if code_of(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise unavailable("bucket " + self.bucket, error) from error
        except BotoCoreError as error:
            raise unavailable("bucket " + self.bucket, error) from error


def _checksum(body: bytes, sha256: str | None) -> str:
    return base64.b64encode(bytes.fromhex(sha256) if sha256 else hashlib.sha256(body).digest()).decode()


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def unavailable(what: str, error: Exception) -> StoreUnavailable:
    return _of_kind(StoreUnavailable(f"the store failed on {what}: {error}"), error)


def _of_kind(found: StoreUnavailable, error: Exception) -> StoreUnavailable:
    found.kind = f"{type(found).__name__} {code_of(error) if isinstance(error, ClientError) else type(error).__name__}"
    return found


def not_written(what: str, error: Exception) -> StoreUnavailable:
    """Return StoreRefused if the store would reject the same write again, else StoreUnavailable."""
    if isinstance(error, ClientError) and code_of(error) not in _BROKEN_ON_THE_WAY:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status in _REFUSALS:
            return _of_kind(StoreRefused(f"the store refused to write {what}: {error}"), error)
    return unavailable(what, error)
