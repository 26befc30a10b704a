"""Multipart uploads to other stores: Amazon's checksums, and MinIO's answers about finished uploads.

Both stores are stubbed; SeaweedFS is tested in tests/gateway/test_batch_collecting.py.
"""

import base64
import datetime
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from botocore.stub import ANY, Stubber

from functions.artifacts.errors import StoreRefused, StoreUnavailable
from functions.artifacts.s3 import S3Credentials, S3Settings, S3Store
from functions.artifacts.s3_large import PART_BYTES, LargeWriter, abort_stale
from tests.artifacts.memory_store import MemoryStore

WAIT_S = 60.0
WHERE = {"Bucket": "shoal-models", "Key": "large"}
UPLOAD = WHERE | {"UploadId": "u1"}
FIRST, LAST = bytes(PART_BYTES), b"rest"


@pytest.fixture
def store() -> Iterator[S3Store]:
    opened = S3Store(S3Settings("http://127.0.0.1:9", S3Credentials("key", "secret"), max_attempts=1))
    yield opened
    opened.close()


@pytest.fixture
def stub(store: S3Store) -> Iterator[Stubber]:
    with Stubber(store.client) as stub:
        yield stub


def checksum(part: bytes) -> str:
    return base64.b64encode(hashlib.sha256(part).digest()).decode()


def takes(stub: Stubber, *parts: bytes) -> None:
    stub.add_response("create_multipart_upload", {"UploadId": "u1"}, WHERE | {"ChecksumAlgorithm": "SHA256"})
    for number, part in enumerate(parts, 1):
        expected = UPLOAD | {"PartNumber": number, "Body": ANY, "ChecksumSHA256": checksum(part)}
        stub.add_response("upload_part", {"ETag": f"t{number}"}, expected)


def completes(stub: Stubber) -> None:
    parts = [
        {"PartNumber": 1, "ETag": "t1", "ChecksumSHA256": checksum(FIRST)},
        {"PartNumber": 2, "ETag": "t2", "ChecksumSHA256": checksum(LAST)},
    ]
    stub.add_response("complete_multipart_upload", {}, UPLOAD | {"MultipartUpload": {"Parts": parts}})


def test_upload_names_its_checksum_at_start_and_completion(store: S3Store, stub: Stubber) -> None:
    takes(stub, FIRST, LAST)
    completes(stub)
    writer = LargeWriter(store, "large")
    writer.write(FIRST + LAST)
    writer.finish()
    stub.assert_no_pending_responses()


def test_completed_upload_is_not_aborted(store: S3Store, stub: Stubber, caplog: pytest.LogCaptureFixture) -> None:
    takes(stub, FIRST, LAST)
    completes(stub)
    writer = LargeWriter(store, "large")
    writer.write(FIRST + LAST)
    writer.finish()
    writer.abort()  # a call to the store would not be stubbed and would log a warning
    assert not caplog.records


def test_abort_of_a_missing_upload_logs_nothing(
    store: S3Store, stub: Stubber, caplog: pytest.LogCaptureFixture
) -> None:
    takes(stub, FIRST, LAST)
    stub.add_client_error(
        "complete_multipart_upload", "SlowDown", http_status_code=503
    )  # although the store has completed it
    stub.add_client_error("abort_multipart_upload", "NoSuchUpload", http_status_code=404)
    writer = LargeWriter(store, "large")
    writer.write(FIRST + LAST)
    with pytest.raises(StoreUnavailable):
        writer.finish()
    writer.abort()
    stub.assert_no_pending_responses()
    assert not caplog.records


def test_failed_abort_is_logged_for_later_cleanup(
    store: S3Store, stub: Stubber, caplog: pytest.LogCaptureFixture
) -> None:
    takes(stub, FIRST)
    stub.add_client_error("abort_multipart_upload", "InternalError", http_status_code=500)
    writer = LargeWriter(store, "large")
    writer.write(FIRST + LAST)
    writer.abort()
    assert "could not be deleted yet" in caplog.text


def test_already_aborted_upload_does_not_block_cleanup(store: S3Store, stub: Stubber) -> None:
    begun = datetime.datetime.fromtimestamp(1, datetime.UTC)
    uploads = [{"Key": "large", "UploadId": name, "Initiated": begun} for name in ("u1", "u2")]
    stub.add_response("list_multipart_uploads", {"Uploads": uploads}, {"Bucket": "shoal-models"})
    stub.add_client_error("abort_multipart_upload", "NoSuchUpload", http_status_code=404)
    stub.add_response("abort_multipart_upload", {}, WHERE | {"UploadId": "u2"})
    assert abort_stale(store, 2.0) == 2
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("status", "code", "is_refused"),
    [
        (400, "InvalidRequest", True),
        (403, "AccessDenied", True),
        (400, "RequestTimeout", False),
        (503, "SlowDown", False),
    ],
)
def test_refused_write_differs_from_unavailable_store(
    store: S3Store, stub: Stubber, status: int, code: str, is_refused: bool
) -> None:
    for call in ("create_multipart_upload", "put_object", "put_object"):
        stub.add_client_error(call, code, http_status_code=status)
    large = LargeWriter(store, "large")
    for write in (
        lambda: large.write(FIRST + LAST),
        lambda: store.put("small", b""),
        lambda: store.put_new("small", b""),
    ):
        with pytest.raises(StoreUnavailable) as failed:
            write()
        assert isinstance(failed.value, StoreRefused) == is_refused


class SlowStore(MemoryStore):
    """Store whose writes wait until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    def put(self, key: str, body: bytes, *, sha256: str | None = None) -> None:
        self.is_writing.set()
        assert self.may_write.wait(WAIT_S)
        super().put(key, body)


def test_abort_waits_for_running_writes() -> None:
    slow = SlowStore()
    writer = LargeWriter(slow, "small")  # type: ignore[arg-type]
    writer.write(b"text")
    with ThreadPoolExecutor(2) as threads:
        finishing = threads.submit(writer.finish)  # the waiting task may be cancelled: the thread continues
        assert slow.is_writing.wait(WAIT_S)
        aborting = threads.submit(writer.abort)
        assert not wait([aborting], timeout=0.2).done
        slow.may_write.set()
        finishing.result(WAIT_S)
        aborting.result(WAIT_S)
    assert slow.objects == {"small": b"text"}


def test_aborted_writer_starts_no_upload(store: S3Store, stub: Stubber) -> None:
    writer = LargeWriter(store, "large")
    writer.abort()
    with pytest.raises(StoreUnavailable, match="has ended"):
        writer.write(FIRST + LAST)
    with pytest.raises(StoreUnavailable, match="has ended"):
        writer.finish()
