"""An agent with more adapters than its engine has slots, and requests for cold adapters."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from functions.api.ids import Digest, EngineName, ModelId
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from tests.artifacts.adapter_files import make_adapter
from tests.replica.processes import AgentProcess, Engine, http
from tests.replica.snapshots import keep, make_snapshot, name_of


def publish_many(store: S3Store, tmp_path: Path, count: int, *, first: int = 0) -> dict[ModelId, Digest]:
    """Publish one adapter each for `acme/cold-00`, `acme/cold-01` and so on."""
    found = {}
    for number in range(first, first + count):
        model = ModelId(f"acme/cold-{number:02}")
        source = make_adapter(tmp_path / "sources" / model, seed=number + 1)
        found[model] = publish_directory(store, source, f"s3://shoal-models/{model}/v1", replace=True)
    return found


def names_of(digests: dict[ModelId, Digest]) -> list[EngineName]:
    return [name_of(digest, model) for model, digest in sorted(digests.items())]


def agent_for(
    digests: dict[ModelId, Digest],
    store: S3Store,
    tmp_path: Path,
    engine: Engine,
    bus_url: str,
    *,
    max_adapters: int | None = None,
    **settings: str,
) -> AgentProcess:
    """Return an agent that is not started yet; its snapshot is in the cache file."""
    agent = AgentProcess(tmp_path, engine, bus_url, s3=store.settings, settings=settings)
    versions = {model: {"v1": digest} for model, digest in digests.items()}
    keep(agent.snapshot_cache_file, make_snapshot(versions, max_adapters=max_adapters))
    return agent


def ask_at_once(agent: AgentProcess, names: Sequence[EngineName]) -> list[tuple[int, dict[str, Any]]]:
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(agent.load, names))


def complete(engine: Engine, name: str, tokens: int = 1) -> int:
    body = {"model": name, "prompt": "ping", "max_tokens": tokens, "ignore_eos": True}
    return http("POST", f"{engine.url}/v1/completions", body, 400.0)[0]


def installed(tmp_path: Path) -> set[str]:
    """Hex digests of the artifacts in the node's cache."""
    return {path.name for path in (tmp_path / "cache" / "sha256").glob("*")}


def metric(agent: AgentProcess, sample: str) -> float:
    page = http("GET", f"{agent.url}/metrics")[1].decode()
    return float(next(line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(sample + " ")))


def leases(tmp_path: Path) -> dict[str, list[str]]:
    return {path.stem: json.loads(path.read_text()) for path in (tmp_path / "cache" / "leases").glob("*.json")}
