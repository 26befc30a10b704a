"""Node fetchers as separate processes, forked after all imports and started together.

Forking keeps the imports (a second of CPU for each node) out of the measurement. One node can be made to send corrupt
chunks, like a node with a broken disk or a malicious one.
"""

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import msgspec

from functions.api.ids import Digest
from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.s3 import S3Settings, S3Store
from functions.artifacts.swarm.shelf import ChunkShelf
from functions.replica.node_fetch import runner
from functions.replica.node_fetch.runner import Report
from functions.replica.node_fetch.wanted import Wanted
from functions.replica.settings import NodeFetchSettings
from loadtests.fan_out.store import CREDENTIALS

_POLL_S = 0.05


class CorruptShelf(ChunkShelf):
    """A shelf that flips the last bit of every chunk."""

    def read(self, digest: Digest, sha256: str) -> bytes | None:
        content = super().read(digest, sha256)
        return None if content is None else content[:-1] + bytes([content[-1] ^ 1])


@dataclass(slots=True)
class NodeProcess:
    name: str
    settings: NodeFetchSettings
    folder: Path
    process: BaseProcess

    @property
    def report(self) -> Report | None:
        """Report that the node printed at its end, or None while it is fetching."""
        try:
            line = (self.folder / "report.json").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(line, type=Report) if line.endswith(b"\n") else None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def running_nodes(
    folder: Path, all_settings: list[NodeFetchSettings], digest: Digest, corrupt: frozenset[int]
) -> Iterator[list[NodeProcess]]:
    """Start a fetcher for each settings object, all together; kill those that still run at the end."""
    _warm_up(all_settings[0])
    context = multiprocessing.get_context("fork")
    gate = context.Event()
    nodes = []
    for index, settings in enumerate(all_settings):
        own = folder / f"node-{index}"
        own.mkdir(parents=True)
        process = context.Process(target=_main, args=(settings, digest, own, gate, index in corrupt), daemon=True)
        process.start()
        nodes.append(NodeProcess(f"node-{index}", settings, own, process))
    try:
        gate.set()
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def wait_for(nodes: list[NodeProcess], timeout_s: float) -> list[Report]:
    """Wait for the nodes' reports. Raise RuntimeError with the end of the log if a node fails or is too slow."""
    until_s = time.monotonic() + timeout_s
    while True:
        reports = [node.report for node in nodes]
        for node, report in zip(nodes, reports, strict=True):
            if report is None and (not node.process.is_alive() or time.monotonic() > until_s):
                raise RuntimeError(f"{node.name} has not fetched the artifact:\n{node.log[-3000:]}")
        done = [report for report in reports if report is not None]
        if len(done) == len(nodes):
            return done
        time.sleep(_POLL_S)


def _warm_up(settings: NodeFetchSettings) -> None:
    """Import lazily imported modules and read botocore's models once, before the nodes fork."""
    for module in ("anyio._backends._asyncio", "uvicorn.protocols.http.httptools_impl", "uvicorn.lifespan.off"):
        importlib.import_module(module)
    httpx.Client().close()
    with contextlib.suppress(StoreUnavailable):
        S3Store(S3Settings(settings.s3_endpoint_url, CREDENTIALS)).size_of("ready")


def _main(settings: NodeFetchSettings, digest: Digest, folder: Path, gate: object, corrupt: bool) -> None:
    os.dup2(os.open(folder / "report.json.part", os.O_CREAT | os.O_WRONLY, 0o600), sys.stdout.fileno())
    (folder / "report.json").symlink_to("report.json.part")
    os.dup2(os.open(folder / "log", os.O_CREAT | os.O_WRONLY, 0o600), sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if corrupt:
        vars(runner)["ChunkShelf"] = CorruptShelf
    gate.wait()  # type: ignore[attr-defined]
    runner.run(settings, [Wanted(digest)])
