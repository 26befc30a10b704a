"""A SeaweedFS for a measurement: one process on loopback with free ports, which ends with the measurement."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import S3Credentials, S3Settings, S3Store
from functions.controller.local import context

CREDENTIALS = S3Credentials(access_key_id="shoal-fan-out", secret_access_key="shoal-fan-out-secret")
_START_TIMEOUT_S = 60.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


@contextmanager
def running_store(folder: Path) -> Iterator[int]:
    """Run a store with an empty bucket and its data in `folder`; yield its port."""
    (folder / "data").mkdir(parents=True)
    identity = {
        "name": "shoal",
        "credentials": [{"accessKey": CREDENTIALS.access_key_id, "secretKey": CREDENTIALS.secret_access_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = free_ports(8)
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(_arguments(folder, ports), stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_it_writes(ports[6], process, folder / "weed.log")
        yield ports[6]
    finally:
        process.kill()
        process.wait()


def store_at(port: int) -> S3Store:
    return S3Store(S3Settings(f"http://127.0.0.1:{port}", CREDENTIALS))


def _arguments(folder: Path, ports: list[int]) -> list[str]:
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    return [
        *(str(context.weed()), "-logtostderr", "server", f"-dir={folder / 'data'}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", f"-master.port.grpc={master_grpc}"),
        *("-master.telemetry=false", "-master.volumeSizeLimitMB=512", "-master.electionTimeout=1s"),
        *(f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", "-volume.max=16", "-volume.preStopSeconds=0"),
        *(f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}", f"-filer.localSocket={folder / 'filer.sock'}"),
        *("-s3", f"-s3.config={folder / 's3.json'}", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}"),
        *(f"-s3.localSocket={folder / 's3.sock'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"),
        "-s3.cacheCapacityMB=0",
    ]


def _wait_until_it_writes(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    store = store_at(port)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            store.ensure_bucket()
            store.put("ready", b"yes")
        except StoreUnavailable:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"weed did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.1)
        else:
            store.close()
            return
