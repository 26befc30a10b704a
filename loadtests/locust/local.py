"""A local fleet for load profiles: simulated engines, an embedding pool, many adapters and several gateways.

    python -m loadtests.locust.local FOLDER --gateways 3        # until Ctrl-C; then everything is stopped
    source FOLDER/env.sh && python -m loadtests.locust mix

`shoal up` runs one gateway. This module starts the others with its settings and with their own ports and state. Each
user of a load test uses one gateway (SHOAL_GATEWAYS), like a connection behind a load balancer.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

PROJECT = Path(__file__).parent.parent.parent
BASE, VECTORS = "smollm2-135m", "vectors"
_READY_S = 300.0
_SHOAL = [sys.executable, "-m", "functions.cli.main"]
_FLAGS = ("--runner=pooling", "--max-model-len=512", "--max-num-seqs=16", "--dtype=float32")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.locust.local")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=2, help="Replicas of each of the two pools.")
    parser.add_argument("--adapters", type=int, default=24, help="Adapters of tenant acme, in addition to the demo's.")
    parser.add_argument("--port-base", type=int, default=18_400)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with contextlib.suppress(KeyboardInterrupt), fleet(options) as addresses:
        print(f"source {options.folder}/env.sh   # {len(addresses)} gateways; Ctrl-C ends them", flush=True)
        while True:
            time.sleep(3600)


@contextlib.contextmanager
def fleet(options: argparse.Namespace) -> Iterator[list[str]]:
    folder: Path = options.folder.absolute()
    project = write_project(folder / "project", options.adapters)
    environment = os.environ | {
        "SHOAL_STATE_DIR": str(folder / "state"),
        "SHOAL_PROJECT_DIR": str(project),
        "SHOAL_PORT_BASE": str(options.port_base),
    }
    children: list[subprocess.Popen[bytes]] = []
    try:
        up = [*_SHOAL, "up", "--engine", "sim", "--replicas", str(options.replicas)]
        subprocess.run(up, env=environment, cwd=project, check=True)
        addresses = [f"https://localhost:{options.port_base + 3}/v1"]
        own = psutil.Process(_gateway_pid(folder / "state")).environ()
        for number in range(1, options.gateways):
            port = options.port_base + 90 + 2 * number
            children.append(_gateway(own, folder / f"gateway-{number}", port))
            addresses.append(f"https://localhost:{port}/v1")
        env = subprocess.run(
            [*_SHOAL, "env", "-o", "json"], env=environment, capture_output=True, check=True, cwd=project
        )
        exports = {name: value for name, value in json.loads(env.stdout).items() if name.isupper()}
        exports |= {"SHOAL_GATEWAYS": ",".join(addresses), "SHOAL_STATE_DIR": str(folder / "state")}
        _wait(addresses, exports["SSL_CERT_FILE"])
        (folder / "env.sh").write_text(
            "".join(f"export {name}={shlex.quote(each)}\n" for name, each in exports.items())
        )
        yield addresses
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
        subprocess.run([*_SHOAL, "down"], env=environment, cwd=project, check=False)


def write_project(folder: Path, adapters: int) -> Path:
    """Write the demo's YAML, an embedding pool, and copies of one adapter under distinct names."""
    for name in ("inferenceservices", "policies", "registry"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in (PROJECT / name).glob("*.yaml"):
            (folder / name / file.name).write_text(file.read_text())
    adapters_of_demo = folder / "registry" / "adapters"
    if not adapters_of_demo.exists():
        adapters_of_demo.symlink_to(PROJECT / "registry" / "adapters")
    service = (folder / "inferenceservices" / f"{BASE}.yaml").read_text()
    (folder / "inferenceservices" / f"{VECTORS}.yaml").write_text(_vectors(service))
    models = folder / "registry" / "models.yaml"
    documents = models.read_text().split("---\n")
    pirate = next(each for each in documents if "id: acme/pirate" in each)
    base = documents[0].replace(f"name: {BASE}", f"name: {VECTORS}").replace(f"id: {BASE}", f"id: {VECTORS}")
    more = [_renamed(pirate, f"load-{number:03d}") for number in range(adapters)]
    models.write_text("---\n".join([*documents, base, *more]))
    tenants = folder / "policies" / "tenants.yaml"
    tenants.write_text(tenants.read_text().replace(f'"{BASE}"]', f'"{BASE}", "{VECTORS}"]'))
    return folder


def _renamed(document: str, name: str) -> str:
    renamed = document.replace("name: acme.pirate", f"name: acme.{name}").replace("id: acme/pirate", f"id: acme/{name}")
    return renamed if renamed.endswith("\n") else f"{renamed}\n"


def _vectors(service: str) -> str:
    head, _, arguments = service.partition("      args:\n")
    _, _, rest = arguments.partition("      env:\n")
    head = head.replace(f"name: {BASE}", f"name: {VECTORS}", 1)
    head = head.replace(f"shoal.dev/pool: {BASE}}}", f"shoal.dev/pool: {VECTORS}}}")  # in its topology spread
    head = head.replace(f"shoal.dev/pool: {BASE}", f"shoal.dev/pool: {VECTORS}\n    shoal.dev/task: embed")
    listed = "".join(f"        - {flag}\n" for flag in (*_FLAGS, "--convert=embed"))
    return f"{head}      args:\n{listed}      env:\n{rest}"


def _gateway(own: dict[str, str], folder: Path, port: int) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    changed = {
        "GATEWAY_ID": folder.name,
        "PORT": str(port),
        "METRICS_PORT": str(port + 1),
        "SNAPSHOT_CACHE_FILE": str(folder / "snapshot.json"),
        "TRACE_DIR": str(folder / "traces"),
        "USAGE_DIR": str(folder / "usage"),
        "HANDOVER_SOCKET": str(folder / "door"),
    }
    settings = own | {f"SHOAL_GATEWAY_{name}": value for name, value in changed.items()}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "functions.gateway"], env=settings, stdout=log, stderr=log)


def _gateway_pid(state: Path) -> int:
    ledger = json.loads((state / "run" / "processes.json").read_text())
    return next(int(entry["pid"]) for entry in ledger["processes"] if entry["role"] == "gateway" and entry.get("pid"))


def _wait(addresses: list[str], ca_file: str) -> None:
    give_up_s = time.monotonic() + _READY_S
    for address in addresses:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{address.removesuffix('/v1')}/readyz", verify=ca_file, timeout=30.0).status_code == 200:
                    break
            if time.monotonic() > give_up_s:
                raise SystemExit(f"{address} is not ready after {_READY_S:.0f} s")
            time.sleep(0.5)


if __name__ == "__main__":
    main()
