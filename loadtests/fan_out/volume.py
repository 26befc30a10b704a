"""A shared volume as for `pvc://`: one node copies the artifact from the store into a folder, then N nodes read it.

The readers start when the copy is complete, as engines do if a Job fills their volume. They share the link of the
volume's server equally, and each has its own link as well. Readers discard the data, because engines map the files.
"""

import multiprocessing
import time
from multiprocessing.queues import Queue
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts.swarm.chunk_clients import Bandwidth
from loadtests.fan_out.nodes import NodeProcess

_BLOCK_BYTES = 256 * 1024


def read_by(readers: int, copier: NodeProcess, digest: Digest, rate: float, timeout_s: float) -> list[float]:
    """Start `readers` readers together, each at `rate` bytes a second, and return their durations in seconds."""
    folder = copier.settings.cache_dir / "sha256" / digest.removeprefix("sha256:")
    context = multiprocessing.get_context("fork")
    gate, told = context.Event(), context.Queue()
    processes = [context.Process(target=_read, args=(folder, rate, gate, told), daemon=True) for _ in range(readers)]
    for process in processes:
        process.start()
    try:
        gate.set()
        until_s = time.monotonic() + timeout_s
        return [told.get(timeout=max(0.1, until_s - time.monotonic())) for _ in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _read(folder: Path, rate: float, gate: object, told: "Queue[float]") -> None:
    gate.wait()  # type: ignore[attr-defined]
    began_s, bandwidth = time.monotonic(), Bandwidth(rate)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                time.sleep(bandwidth.reserve(len(block)))
    told.put(time.monotonic() - began_s)
