"""The local trace store as a separate process, with its data in a folder."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from functions.telemetry.store.client import StoreAddress, StoreAway, TraceStore

PASSWORD = "measured"


class StoreProcess:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        folder.mkdir(exist_ok=True)
        (folder / "password").write_text(PASSWORD)
        self.start()

    def start(self) -> None:
        names = {"DIRECTORY": self.folder / "data", "PASSWORD_FILE": self.folder / "password", "PORT": self.port}
        env = os.environ | {f"SHOAL_TRACE_STORE_{name}": str(value) for name, value in names.items()}
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "functions.telemetry.store"]
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        with contextlib.closing(self.client()) as store:
            for _ in range(600):
                with contextlib.suppress(StoreAway):
                    store.select("SELECT 1")
                    return
                time.sleep(0.1)
        raise SystemExit(f"the store did not start: {(self.folder / 'log').read_text()}")

    def client(self) -> TraceStore:
        return TraceStore(StoreAddress(f"http://127.0.0.1:{self.port}", "shoal", PASSWORD), answer_s=600.0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def store_process(folder: Path, port: int = 19_871) -> Iterator[StoreProcess]:
    found = StoreProcess(folder, port)
    try:
        yield found
    finally:
        found.kill()
