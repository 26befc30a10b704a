"""Plan node fetchers: one process for each version of base weights that replicas are started from by name.

`storageUri: shoal://NAME@VERSION` is the folder `NAME@VERSION` below the models directory. It is a link into the
cache, which the fetcher creates when all files are present and verified. Engines wait for it, as a pod's engine waits
for the storage initializer (manifests/base/models/weights.yaml). The fetcher then holds the version in the cache as
long as a replica is started from it. An existing link also counts, because its target was verified when the link was
created.
"""

from collections.abc import Iterable
from pathlib import Path

from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.locations import WeightsName, parse_weights_name
from functions.controller.local.context import PlanContext
from functions.controller.local.plan_servers import environment
from functions.controller.local.pools import Pool
from functions.controller.local.spec import PathProbe, ProcessSpec, Timing

CACHE_MAX_BYTES = 100 * 2**30  # for a workstation; weights in use by engines are never evicted
_FETCH_S = 3600.0  # same as SHOAL_NODE_FETCH_TIMEOUT_S


def fetcher_of(folder: str) -> str | None:
    """Return the name of the process that fetches the folder, or None for a folder without a fetcher."""
    name = _weights_name(folder)
    return None if name is None else f"weights-{name}"


def fetchers(context: PlanContext, pools: Iterable[Pool]) -> list[ProcessSpec]:
    """Return one fetcher for each version that a pool declares or a replica is started from; folders that need no
    fetcher are left out."""
    folders = {folder for pool in pools for folder in {pool.model, *pool.folders}}
    names = sorted((name for folder in folders if (name := _weights_name(folder)) is not None), key=str)
    return [_fetcher(context, name) for name in names]


def compiled_root(context: PlanContext, folder: str) -> Path:
    """Return VLLM_CACHE_ROOT of engines that are started from the folder; the fetcher puts compiled artifacts there."""
    return context.layout.root / "cache" / "compiled" / folder


def _fetcher(context: PlanContext, name: WeightsName) -> ProcessSpec:
    layout, folder = context.layout, context.models_root / str(name)
    env = {
        "REGISTRY_URL": context.registry_url,
        "REGISTRY_CA_FILE": layout.ca_file,
        "INTERNAL_TOKEN_FILE": layout.credentials("agent"),
        "S3_ENDPOINT_URL": context.s3_url,
        "S3_CREDENTIALS_FILE": layout.secret("s3.json"),
        "CACHE_DIR": layout.root / "cache" / "weights",
        "CACHE_MAX_BYTES": CACHE_MAX_BYTES,
        "SEED_S": "inf",
        "COMPILED_DIR": compiled_root(context, str(name)),
    }
    return ProcessSpec(
        name=f"weights-{name}",
        role="weights",
        argv=(str(context.python), "-m", "functions.replica.node_fetch", name.uri, str(folder)),
        env=environment("SHOAL_NODE_FETCH_", env),
        inherits=("SHOAL_NODE_FETCH_",),
        readiness=PathProbe(folder),
        after=("registry", "s3"),
        timing=Timing(start_s=_FETCH_S, drain_s=5),
    )


def _weights_name(folder: str) -> WeightsName | None:
    try:
        return parse_weights_name(folder)
    except ArtifactRefused:
        return None
