"""The registry process while its database is away, locked or damaged: it says so and still serves the snapshot."""

import contextlib
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from functions.api import snapshot as snapshots
from functions.fleet.snapshots import SNAPSHOT_PATH
from functions.registry.sql.engine import SQLITE_FILE
from tests.ports import free_port
from tests.registry.catalogue_rig import published
from tests.registry.test_process import environment, registry

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # several processes, each of which may be slow to start

CATALOGUE = ("/v1/models", "/v1/rollouts", "/v1/audit", "/internal/v1/changes")


def served(client: httpx.Client) -> None:
    """Check that the registry serves what the data plane needs."""
    body = snapshots.encode(published())
    assert client.put(SNAPSHOT_PATH, content=body).status_code == 204
    assert client.get(SNAPSHOT_PATH).content == body
    assert client.get("/v1/fleet").status_code == 200
    assert client.get("/metrics").status_code == 200


def refused(client: httpx.Client, words: str) -> None:
    for path in CATALOGUE:
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable"), path
        assert words in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]


def test_snapshot_is_served_without_postgres(tmp_path: Path) -> None:
    port = free_port()
    env = environment(tmp_path, port, SHOAL_REGISTRY_DATABASE_URL="postgresql://shoal:s3cret@127.0.0.1:1/none")
    with registry(env, f"http://127.0.0.1:{port}") as client:
        served(client)
        refused(client, "not ready yet")
        assert client.get("/readyz").json()["database_ready"] is False


def test_snapshot_is_served_beside_a_damaged_file_that_is_kept(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / SQLITE_FILE).write_bytes(b"damaged" * 1000)
    with registry(environment(tmp_path, port), f"http://127.0.0.1:{port}") as client:
        served(client)
        refused(client, "not ready yet")
    assert (tmp_path / "state" / SQLITE_FILE).read_bytes() == b"damaged" * 1000


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_database_that_starts_later_is_used_without_a_restart(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    port = free_port()
    env = environment(tmp_path, port)
    with contextlib.ExitStack() as later:
        if backend == "sqlite":
            file = tmp_path / "state" / SQLITE_FILE
            file.parent.mkdir()
            file.write_bytes(b"damaged" * 1000)
        else:
            door = free_port()
            url = request.getfixturevalue("postgres").new_database()
            env["SHOAL_REGISTRY_DATABASE_URL"] = re.sub(r":\d+/", f":{door}/", url)
        with registry(env, f"http://127.0.0.1:{port}") as client:
            served(client)
            refused(client, "not ready yet")
            if backend == "sqlite":
                file.unlink()
            else:
                later.enter_context(passed_on(door, int(re.findall(r":(\d+)/", url)[0])))
            deadline_s = time.monotonic() + 90
            while not client.get("/readyz").json()["database_ready"]:
                assert time.monotonic() < deadline_s, "not taken up within 90 s"
                time.sleep(0.1)
            assert client.get("/v1/audit/verify").json()["sound"] is True


@contextlib.contextmanager
def passed_on(door: int, port: int) -> Iterator[None]:
    """Forward connections from the door to the port from now on."""

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                target.sendall(block)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):  # the listener was closed: that is the end
            while True:
                near = opened.enter_context(listener.accept()[0])
                far = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=ends, daemon=True).start()

    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", door)))
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def test_snapshot_is_served_after_the_file_is_damaged(tmp_path: Path) -> None:
    port = free_port()
    with registry(environment(tmp_path, port), f"http://127.0.0.1:{port}") as client:
        served(client)
        assert client.get("/v1/models").status_code == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / SQLITE_FILE, isolation_level=None)) as holder:
            holder.execute("DROP TABLE models")
            holder.execute("DROP TABLE state")
        assert client.get("/v1/models").status_code == 503
        assert client.get("/internal/v1/changes").status_code == 503
        assert client.get(SNAPSHOT_PATH).status_code == 200


def test_migrate_updates_the_schema_and_reports_faults(tmp_path: Path) -> None:
    env = environment(tmp_path, 1)
    command = [sys.executable, "-m", "functions.registry"]
    done = subprocess.run([*command, "migrate"], check=False, env=env, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "state" / SQLITE_FILE).exists()) == (0, True), done.stderr
    wrong = subprocess.run([*command, "migrade"], check=False, env=env, capture_output=True, text=True)
    assert (wrong.returncode, "no command" in wrong.stderr) == (1, True)
    env["SHOAL_REGISTRY_DATABASE_URL"] = "mysql://x/y"
    wrong = subprocess.run([*command, "migrate"], check=False, env=env, capture_output=True, text=True)
    assert (wrong.returncode, "postgresql://" in wrong.stderr) == (1, True)


def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    port = free_port()
    url, env = f"http://127.0.0.1:{port}", environment(tmp_path, port)
    (tmp_path / "pepper").write_text("pepper")
    env["SHOAL_REGISTRY_PEPPER_FILE"] = str(tmp_path / "pepper")
    with registry(env, url) as client:
        served(client)
        assert client.post("/v1/tenants/acme/keys", json={"id": "ci"}).status_code == 201
    with registry(env, url) as client:  # the first one was killed with SIGKILL
        assert [key["id"] for key in client.get("/v1/tenants/acme/keys").json()["data"]] == ["ci"]
        assert client.get("/v1/audit/verify").json()["sound"] is True
