"""Cost of 10,000 models and 50,000 tenants: `python -m loadtests.bench.control_plane [--small] [-o json]`.

Measures every step from YAML to a snapshot swap in a gateway under load, with a real registry and a real gateway. Needs
two CPUs and some minutes. On a busy machine the figures are too high, never too low.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from functions.api import snapshot_document as documents
from functions.api.file_result import ParseCache
from functions.api.loader import Loaded, load_directory
from functions.api.snapshot import Snapshot
from functions.api.snapshot_index import Indexed, changes_between, empty, indexed
from functions.api.snapshot_tree import Breathe
from functions.controller.gitops.changes import describe, summarize
from functions.controller.snapshot.compile import compile_snapshot
from functions.fleet.snapshot_file import SnapshotFile
from loadtests.bench import fleet_config
from loadtests.bench.gateway import Bench, ControlPlane, started
from loadtests.bench.load import Tally, Target, closed_loop
from loadtests.bench.processes import free_port, resident_kib, spawn
from loadtests.bench.slices import measured
from loadtests.bench.swaps import Rig, probed

_TOKEN = "bench-token"
_LOAD_S = 15.0
_CONNECTIONS = 2
_BODY = b'{"model":"acme/bench","messages":[{"role":"user","content":"hi"}]}'

Rows = dict[str, str]


def timed(rows: Rows, name: str, work: Callable[[], Any]) -> Any:
    began_s = time.perf_counter()
    result = work()
    rows[name] = f"{(time.perf_counter() - began_s) * 1000:,.0f} ms"
    return result


def compiled(loaded: Loaded, epoch: int = 1) -> Snapshot:
    return compile_snapshot(loaded.objects, {}, epoch=epoch, revision="bench", compiled_unix_s=time.time()).snapshot


def changed(content: Indexed, epoch: int, count: int = 1) -> Indexed:
    """Return the next content, in which `count` tenants have another tier."""
    tenants = list(content.snapshot.tenants)
    at = [index for index, tenant in enumerate(tenants) if tenant.name.startswith("tenant-")]
    for index in at[epoch % 97 :: max(1, len(at) // count)][:count]:
        tenants[index] = msgspec.structs.replace(tenants[index], tier=f"tier{epoch}")
    return indexed(msgspec.structs.replace(content.snapshot, epoch=epoch, tenants=tuple(tenants)), content)


def compiling(folder: Path, models: int, tenants: int, rows: Rows) -> Indexed:
    """Measure the way from files to an indexed snapshot, the first time and after one file was edited."""
    rows["YAML"] = f"{fleet_config.write(folder, models, tenants) / 1e6:.1f} MB"
    cache = ParseCache()
    timed(rows, "load, cold", lambda: load_directory([folder], relative_to=folder, cache=cache))
    file = folder / "policies" / "tenants-00000.yaml"
    file.write_text(file.read_text().replace("maxClass", "maxClass") + "# edited\n")
    loaded = timed(rows, "load, one file edited", lambda: load_directory([folder], relative_to=folder, cache=cache))
    snapshot = timed(rows, "compile", lambda: compiled(loaded))
    content: Indexed = timed(rows, "index and hash, cold", lambda: indexed(snapshot))
    later = compiled(loaded, 2)
    timed(rows, "index and hash, on the last one", lambda: indexed(later, content))
    document = timed(rows, "encode the whole", lambda: b"".join(documents.full_lines(snapshot)))
    rows["the whole"] = f"{len(document) / 1e6:.1f} MB"
    changes = timed(
        rows,
        "changes in words, 1,000 tenants",
        lambda: describe(snapshot, changed(content, 2, min(1000, tenants // 2)).snapshot),
    )
    rows["changes in words"] = summarize(changes).headline
    rows["memory of the loader and compiler"] = f"{resident_kib(os.getpid()) / 1024:.0f} MiB"
    return content


def computing(content: Indexed, folder: Path, rows: Rows) -> None:
    """Measure a follower's CPU time for each kind of registry answer, and its longest slice without a yield."""
    whole = list(documents.in_chunks(b"".join(documents.full_lines(content.snapshot))))
    gc.collect()
    gc.freeze()
    rows["read the whole, from nothing"] = measured(lambda breathe: documents.read(whole, empty(), breathe))
    rows["read the whole, over the same"] = measured(lambda breathe: documents.read(whole, content, breathe))
    kept = SnapshotFile(folder / "kept")
    rows["keep the whole"] = measured(lambda breathe: kept.store(content, breathe=breathe))
    for count in (1, 1000, 15_000):
        new = changed(content, content.snapshot.epoch + 1, count)
        lines = documents.delta_lines(new.snapshot, content.content_hash, changes_between(content, new))
        delta = list(documents.in_chunks(b"".join(lines)))
        rows[f"read a delta, {count:,} tenants"] = measured(_reading(delta, content))
    rows["keep a delta"] = measured(lambda breathe: kept.store(new, b"".join(delta), content.content_hash, breathe))


def _reading(delta: list[bytes], base: Indexed) -> Callable[[Breathe], Indexed]:
    return lambda breathe: documents.read(delta, base, breathe)


@contextmanager
def registry(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a registry process; yield its URL and its pid."""
    port = free_port()
    (folder / "token").write_text(_TOKEN)
    environment = {
        "SHOAL_REGISTRY_PORT": str(port),
        "SHOAL_REGISTRY_INTERNAL_TOKEN_FILE": str(folder / "token"),
        "SHOAL_REGISTRY_STATE_DIR": str(folder / "registry"),
        "SHOAL_REGISTRY_BUS_URL": "valkey://127.0.0.1:9/0",
    }
    with (folder / "registry.log").open("wb") as log:
        child = spawn([sys.executable, "-m", "functions.registry"], log, 1, environment)
        os.setpriority(os.PRIO_PROCESS, child.pid, 10)  # it shares a CPU with the clients, whose latencies are measured
        try:
            _until_ready(f"http://127.0.0.1:{port}/readyz")
            yield f"http://127.0.0.1:{port}", child.pid
        finally:
            child.kill()
            child.wait()


def _until_ready(url: str) -> None:
    for _ in range(200):
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    raise RuntimeError(f"{url} did not become ready")


async def swapping(url: str, folder: Path, content: Indexed, rounds: int, rows: Rows) -> Indexed:
    """Measure publications and swaps, with a probe of gaps on the event loop that swaps."""
    rig = Rig(url, _TOKEN, folder / "cache")
    took_ms, size_bytes = await rig.publish(content, None)
    rows["publish the whole"] = f"{took_ms:,.0f} ms, {size_bytes / 1e6:.1f} MB"
    idle = [(await probed(rig.idle))[1] for _ in range(rounds)]
    rows["longest gap in 50 ms, idle"] = f"p50 {statistics.median(idle):.1f}, max {max(idle):.1f} ms"
    took_ms, gap_ms = await probed(rig.swap)
    rows["first swap: the whole, over HTTP"] = f"{took_ms:,.0f} ms, longest gap {gap_ms:.1f} ms"
    gc.collect()
    gc.freeze()
    for count in (1, 1000, 15_000):
        published, swapped, gaps, sizes = [], [], [], []
        for _ in range(rounds if count == 1 else max(1, rounds // 10)):
            base, content = content, changed(content, content.snapshot.epoch + 1, count)
            took_ms, size_bytes = await rig.publish(content, base)
            published.append(took_ms)
            sizes.append(size_bytes)
            took_ms, gap_ms = await probed(rig.swap)
            swapped.append(took_ms)
            gaps.append(gap_ms)
        rows[f"swap, {count:,} tenants changed"] = (
            f"publish p50 {statistics.median(published):.0f} ms; encoded {sizes[-1]:,} B; "
            f"swap p50 {statistics.median(swapped):.0f}, p99 {_p99(swapped):.0f} ms; "
            f"longest gap p50 {statistics.median(gaps):.1f}, max {max(gaps):.1f} ms"
        )
    await rig.client.aclose()
    return content


async def under_load(bench: Bench, rig: Rig, documents_: list[bytes], pause_s: float, seconds: float) -> Tally:
    """Run the gateway's clients while a document is published every `pause_s`."""
    target = Target(bench.plain_port, b"authorization: Bearer %b\r\n" % bench.api_key.encode())

    async def publish() -> None:
        for document in documents_:
            await asyncio.sleep(pause_s)
            await rig.put(document)

    publishing = asyncio.get_running_loop().create_task(publish())
    tally = await closed_loop(target, [_BODY], _CONNECTIONS, seconds)
    await publishing
    return tally


async def _rounds_under_load(bench: Bench, url: str, folder: Path, held: Indexed, seconds: float, rows: Rows) -> None:
    rig = Rig(url, _TOKEN, folder / "unused")
    await rig.publish(held, None)
    await asyncio.sleep(5.0)  # the gateway swaps to it
    for name, count, pause_s in (
        ("no swap", 0, 1.0),
        ("a swap every 0.5 s, 1 tenant", 1, 0.5),
        ("a swap every 2 s, 1,000 tenants", 1000, 2.0),
        ("a swap every 3 s, 15,000 tenants", 15_000, 3.0),
        ("no swap, again", 0, 1.0),
    ):
        deltas: list[bytes] = []
        for _ in range(int(seconds / pause_s) - 1 if count else 0):  # before the load: clients share this process
            base, held = held, changed(held, held.snapshot.epoch + 1, count)
            deltas.append(rig.delta(held, base))
        gc.collect()
        gc.freeze()
        rows[f"under load, {name}"] = _latencies(await under_load(bench, rig, deltas, pause_s, seconds))
    await rig.client.aclose()


def serving(url: str, registry_pid: int, folder: Path, content: Indexed, seconds: float, rows: Rows) -> None:
    """Measure a gateway under load, with and without swaps."""
    with started(folder, ControlPlane(url, _TOKEN, content.snapshot)) as bench:
        rows["memory of the gateway"] = f"{resident_kib(bench.gateway_pid) / 1024:.0f} MiB"
        held = indexed(msgspec.structs.replace(bench.snapshot, epoch=bench.snapshot.epoch + 1))
        uvloop.run(_rounds_under_load(bench, url, folder, held, seconds, rows))
        rows["memory of the gateway, after"] = f"{resident_kib(bench.gateway_pid) / 1024:.0f} MiB"
        rows["memory of the registry"] = f"{resident_kib(registry_pid) / 1024:.0f} MiB"


def _latencies(tally: Tally) -> str:
    times = sorted(tally.round_trips_us)
    p50, p99, worst = times[len(times) // 2], times[int(len(times) * 0.99)], times[-1]
    return (
        f"p50 {p50 / 1000:.2f}, p99 {p99 / 1000:.2f}, max {worst / 1000:.1f} ms; "
        f"{tally.requests:,} requests, {tally.failures} failed"
    )


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def measure(models: int, tenants: int, rounds: int, seconds: float, rows: Rows, report: Callable[[str], None]) -> None:
    """Run all parts. Each fills `rows` as it goes, so that a failure later loses no figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report("compiling")
        (folder / "config").mkdir()
        content = compiling(folder / "config", models, tenants, rows)
        report("computing")
        computing(content, folder, rows)
        report("cold start")
        SnapshotFile(folder / "cold").store(content)
        timed(rows, "cold start: read the cache", SnapshotFile(folder / "cold").load)
        with registry(folder) as (url, pid):
            report("swapping")
            content = asyncio.run(swapping(url, folder, content, rounds, rows))
            report("under load")
            serving(url, pid, folder, content, seconds, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a hundredth of the size, for a quick check")
    parser.add_argument("--rounds", type=int, default=50, help="number of swaps with one changed tenant")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    scale = 100 if options.small else 1
    console = Console(stderr=True)
    seconds = 2.0 if options.small else _LOAD_S
    rows: Rows = {}
    models, tenants = fleet_config.MODELS // scale, fleet_config.TENANTS // scale
    try:
        measure(models, tenants, options.rounds, seconds, rows, lambda line: console.print(f"[dim]{line}[/dim]"))
    finally:
        show(rows, f"{models:,} models, {tenants:,} tenants", as_json=options.output == "json")


def show(rows: Rows, title: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("", "", title=title)
    for row in rows.items():
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
