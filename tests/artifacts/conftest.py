"""A real SeaweedFS for the tests that need a store (marker `servers`): one process a session, ports from the system."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import S3Credentials, S3Settings, S3Store
from tests.ports import free_ports

__all__ = ["free_ports"]

CREDENTIALS = S3Credentials(access_key_id="shoal-tests", secret_access_key="shoal-tests-secret")
_START_TIMEOUT_S = 90.0
_START_READ_TIMEOUT_S = 5.0  # a store that is starting may accept a request and never answer
_READ_TIMEOUT_S = 60.0  # a store that is slow on a busy machine is not unavailable


def weed_arguments(directory: Path, ports: list[int]) -> list[str]:
    """One process: master, volume, filer and S3 on loopback, no telemetry, small volumes, no extra listeners."""
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    return [
        str(Path(sys.executable).with_name("weed")),
        "-logtostderr",
        "server",
        f"-dir={directory / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=128",
        "-master.electionTimeout=1s",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=64",  # seven a bucket, empty until something is written
        "-volume.preStopSeconds=0",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-filer.localSocket={directory / 'filer.sock'}",
        "-s3",
        f"-s3.config={directory / 's3.json'}",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        f"-s3.localSocket={directory / 's3.sock'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.cacheCapacityMB=0",
    ]


@pytest.fixture(scope="session")
def s3_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Settings]:
    """A running store with an empty bucket."""
    directory = tmp_path_factory.mktemp("weed")
    (directory / "data").mkdir()
    identity = {
        "name": "shoal",
        "credentials": [{"accessKey": CREDENTIALS.access_key_id, "secretKey": CREDENTIALS.secret_access_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = free_ports(8)
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(weed_arguments(directory, ports), stdout=log, stderr=subprocess.STDOUT)
    settings = S3Settings(
        endpoint_url=f"http://127.0.0.1:{ports[6]}",
        credentials=CREDENTIALS,
        max_attempts=1,
        connect_timeout_s=_READ_TIMEOUT_S,
        read_timeout_s=_READ_TIMEOUT_S,
    )
    try:
        _wait_until_it_writes(settings, process, directory / "weed.log")
        yield settings
    finally:
        process.kill()  # SIGTERM waits 15 s for readers that these tests do not have
        process.wait()
        for port in ports:  # weed chooses this folder and ignores TMPDIR; a killed process leaves its sockets
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                left.unlink()


@pytest.fixture
def store(s3_settings: S3Settings) -> Iterator[S3Store]:
    opened = S3Store(s3_settings)
    yield opened
    opened.close()


def _wait_until_it_writes(settings: S3Settings, process: subprocess.Popen[bytes], log: Path) -> None:
    store = S3Store(replace(settings, read_timeout_s=_START_READ_TIMEOUT_S))
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            store.ensure_bucket()
            store.put("ready", b"yes")
        except StoreUnavailable:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"weed did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.1)
        else:
            store.close()
            return
