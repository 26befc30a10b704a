"""The object store over S3: four verbs, foreign exceptions mapped once, every wait bounded.

One `S3Store` holds one client, which threads may share; all calls block, so that callers in an event loop use
`asyncio.to_thread`. Objects are written only where nothing is (`If-None-Match: *`) unless the caller says
otherwise: two publishers of the same content cannot harm each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, StoreUnavailable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client  # from the stubs, which only development installs

DEFAULT_BUCKET = "shoal-models"
_CREDENTIALS_MAX_BYTES = 4096
_READ_BYTES = 256 * 1024
_NOT_FOUND = ("404", "NoSuchKey", "NoSuchBucket", "NotFound")
_ALREADY_THERE = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_CONDITION_UNKNOWN = ("NotImplemented", "501")


class S3Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:  # a secret must not reach a log by way of a repr
        return f"S3Credentials(access_key_id={self.access_key_id!r}, secret_access_key=<hidden>)"


@dataclass(frozen=True, slots=True)
class S3Settings:
    endpoint_url: str
    credentials: S3Credentials
    bucket: str = DEFAULT_BUCKET
    region: str = "us-east-1"  # SeaweedFS ignores it; the signature needs one
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 20.0  # one socket read: what a stalled store may hold a thread for
    max_attempts: int = 3  # botocore's own, with jitter, for 500, 503 and broken connections


class CredentialsInvalid(Exception):
    """The credentials file is missing or wrong: correct the file."""


def load_credentials(file: Path) -> S3Credentials:
    """The credentials in `{"access_key_id": …, "secret_access_key": …}`."""
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
                retries={"total_max_attempts": settings.max_attempts, "mode": "standard"},
                s3={"addressing_style": "path"},
                # Every byte is verified against its sha256 here; CRCs on top would only cost time.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    @property
    def bucket(self) -> str:
        return self.settings.bucket

    def ensure_bucket(self) -> None:
        """Create the bucket unless it is there."""
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except ClientError as error:
            if _code(error) not in _NOT_FOUND:
                raise _unavailable("bucket " + self.bucket, error) from error
            self._create_bucket()
        except BotoCoreError as error:
            raise _unavailable("bucket " + self.bucket, error) from error

    def size_of(self, key: str) -> int | None:
        """The object's bytes, or None where there is no such object."""
        try:
            return self._client.head_object(Bucket=self.bucket, Key=key)["ContentLength"]
        except ClientError as error:
            if _code(error) in _NOT_FOUND:
                return None
            raise _unavailable(key, error) from error
        except BotoCoreError as error:
            raise _unavailable(key, error) from error

    def read_small(self, key: str, max_bytes: int) -> bytes:
        """A whole object of at most `max_bytes`."""
        return b"".join(self.stream(key, max_bytes))

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        """The object's bytes in blocks; ArtifactCorrupt as soon as they are more than `max_bytes`."""
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
            if _code(error) in _NOT_FOUND:
                raise ArtifactMissing(f"the store has no {key}") from error
            raise _unavailable(key, error) from error
        except (BotoCoreError, OSError) as error:
            raise _unavailable(key, error) from error

    def put_new(self, key: str, body: bytes | BinaryIO) -> bool:
        """Write the object unless one is there; whether it was written."""
        try:
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*")
        except ClientError as error:
            if _code(error) in _ALREADY_THERE:
                return False
            if _code(error) in _CONDITION_UNKNOWN:  # an older store: look first, then write; equal content either way
                return self._put_after_looking(key, body)
            raise _unavailable(key, error) from error
        except BotoCoreError as error:
            raise _unavailable(key, error) from error
        return True

    def put(self, key: str, body: bytes | BinaryIO) -> None:
        """Write the object, whatever was there."""
        try:
            self._client.put_object(Bucket=self.bucket, Key=key, Body=body)
        except (ClientError, BotoCoreError) as error:
            raise _unavailable(key, error) from error

    def close(self) -> None:
        self._client.close()

    def _put_after_looking(self, key: str, body: bytes | BinaryIO) -> bool:
        if self.size_of(key) is not None:
            return False
        if not isinstance(body, bytes):
            body.seek(0)
        self.put(key, body)
        return True

    def _create_bucket(self) -> None:
        try:
            self._client.create_bucket(Bucket=self.bucket)
        except ClientError as error:
            if _code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise _unavailable("bucket " + self.bucket, error) from error
        except BotoCoreError as error:
            raise _unavailable("bucket " + self.bucket, error) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _unavailable(what: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the store failed on {what}: {error}")
