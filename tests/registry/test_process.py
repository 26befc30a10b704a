"""The registry as a process: TLS, restart, SIGTERM during long polls, and errors in its settings."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from functions.api import snapshot as snapshots
from functions.fleet.snapshots import EPOCH_HEADER, SNAPSHOT_PATH
from tests.fleet.builders import snapshot
from tests.ports import free_port
from tests.roles import RoleProcess, start
from tests.soak import sampled

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start
TOKEN = "internal-token"


def environment(folder: Path, port: int, **changes: str) -> dict[str, str]:
    (folder / "token").write_text(TOKEN + "\n")
    return {
        **os.environ,
        "SHOAL_REGISTRY_PORT": str(port),
        "SHOAL_REGISTRY_INTERNAL_TOKEN_FILE": str(folder / "token"),
        "SHOAL_REGISTRY_STATE_DIR": str(folder / "state"),
        "SHOAL_REGISTRY_BUS_URL": "valkey://127.0.0.1:1/0",
        "SHOAL_REGISTRY_TLS_CERT_FILE": "",
        **changes,
    }


@contextmanager
def registry(env: dict[str, str], base_url: str, verify: ssl.SSLContext | bool = True) -> Iterator[httpx.Client]:
    with tempfile.TemporaryFile() as log:  # an unread pipe would fill up and block the process
        process = start("functions.registry", env=env, stderr=log)
        headers = {"authorization": f"Bearer {TOKEN}", "x-process": str(process.pid)}
        try:
            with httpx.Client(base_url=base_url, headers=headers, verify=verify, timeout=60) as client:
                _until_ready(client, process, log)
                yield client
        finally:
            process.kill()
            process.wait()


def _until_ready(client: httpx.Client, process: RoleProcess, log: IO[bytes] | None = None) -> None:
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/readyz").status_code == 200:
                return
        assert process.poll() is None, _read(log)
        time.sleep(0.05)
    raise AssertionError(f"the registry was not ready within 90 s:\n{_read(log)}")


def _read(log: IO[bytes] | None) -> str:
    if log is None:
        return "what it said is above"
    log.seek(0)
    return log.read().decode()


def test_killed_registry_restarts_with_acknowledged_state(tmp_path: Path) -> None:
    port = free_port()
    url, env = f"http://127.0.0.1:{port}", environment(tmp_path, port)
    with registry(env, url) as client:
        assert client.put(SNAPSHOT_PATH, content=snapshots.encode(snapshot(epoch=6))).status_code == 204
    with registry(env, url) as client:  # the first one was killed with SIGKILL
        assert client.get(SNAPSHOT_PATH).content == snapshots.encode(snapshot(epoch=6))


@pytest.mark.parametrize(("path", "heard"), [(SNAPSHOT_PATH, b"204"), ("/internal/v1/changes", b"200")])
def test_sigterm_ends_long_polls_at_once_and_exits_with_zero(tmp_path: Path, path: str, heard: bytes) -> None:
    port = free_port()
    env = environment(tmp_path, port, SHOAL_REGISTRY_DRAIN_TIMEOUT_S="600")
    process = start("functions.registry", env=env)
    try:
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            _until_ready(client, process)
            with socket.create_connection(("127.0.0.1", port), timeout=50) as waiting:
                request = f"GET {path}?wait_s=60 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
                waiting.sendall(request.encode())
                for _ in range(10):  # sent later and answered, so the first one was read and is waiting
                    assert client.get(path, params={"wait_s": 0}).status_code == int(heard)
                client.close()
                started_s = time.monotonic()
                process.send_signal(signal.SIGTERM)
                assert waiting.recv(100).startswith(b"HTTP/1.1 " + heard)
        assert process.wait(50) == 0
        assert time.monotonic() - started_s < 50
    finally:
        process.kill()
        process.wait()


def test_registry_serves_tls(tmp_path: Path) -> None:
    port = free_port()
    cert, key = certificate(tmp_path)
    tls = {"SHOAL_REGISTRY_TLS_CERT_FILE": str(cert), "SHOAL_REGISTRY_TLS_KEY_FILE": str(key)}
    context = ssl.create_default_context(cafile=str(cert))
    with registry(environment(tmp_path, port, **tls), f"https://localhost:{port}", context) as client:
        assert client.head(SNAPSHOT_PATH).headers[EPOCH_HEADER] == "0"


MISTAKES = [
    ({"SHOAL_REGISTRY_PORT": "taken"}, "set SHOAL_REGISTRY_PORT"),
    ({"SHOAL_REGISTRY_PORT": "99999"}, "less than or equal to 65535"),
    ({"SHOAL_REGISTRY_INTERNAL_TOKEN_FILE": "/nowhere/token"}, "cannot be read"),
    ({"SHOAL_REGISTRY_INTERNAL_TOKEN_FILE": os.devnull}, "is empty; it must contain a secret"),
    ({"SHOAL_REGISTRY_TLS_CERT_FILE": "/nowhere/cert.pem"}, "SHOAL_REGISTRY_TLS_KEY_FILE, or neither"),
    ({"SHOAL_REGISTRY_DATABASE_PASSWORD_FILE": __file__}, "SHOAL_REGISTRY_DATABASE_URL is not a Postgres URL"),
]


@pytest.mark.parametrize(("changes", "says"), sampled(MISTAKES, keep=[MISTAKES[0], MISTAKES[4]], each_is_several=True))
def test_invalid_setting_is_reported_with_a_message(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        changes = {name: port if value == "taken" else value for name, value in changes.items()}
        env = environment(tmp_path, free_port(), **changes)
        ended = subprocess.run(
            [sys.executable, "-m", "functions.registry"],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file
