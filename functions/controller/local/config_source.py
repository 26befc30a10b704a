"""Pools from the configuration directory: read with the one loader, judged whole, bad files never half-used."""

from pathlib import Path

from functions.api.kinds.inference_service import InferenceService
from functions.controller.local.pools import Pool

VOLUME_PREFIX = "pvc://shoal-models/"
CONFIG_MAX_FILES = 10_000

# (path, modification time, size) of every file: what changes when anybody edits anything.
Signature = tuple[tuple[str, int, int], ...]


class PoolUnusable(Exception):
    """An InferenceService that the local target cannot run; the message says what to change."""


def signature(directory: Path) -> Signature:
    """Cheap enough for once a second; files that come and go meanwhile are seen the next time."""
    found: list[tuple[str, int, int]] = []
    for path in sorted(directory.rglob("*.y*ml"))[:CONFIG_MAX_FILES]:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)


def pool_from(service: InferenceService) -> Pool | None:
    """None for a service without our label; PoolUnusable where the local target cannot run it."""
    if service.pool is None:
        return None
    model = service.spec.predictor.model
    if model is None:
        raise PoolUnusable(f"InferenceService {service.metadata.name}: spec.predictor.model is missing")
    uri = model.storage_uri or ""
    if not uri.startswith(VOLUME_PREFIX) or "/" in uri.removeprefix(VOLUME_PREFIX) or uri == VOLUME_PREFIX:
        raise PoolUnusable(
            f"InferenceService {service.metadata.name}: the local target serves storageUri {VOLUME_PREFIX}<name>, "
            f"a directory below .shoal/models, not {uri or 'nothing'}"
        )
    return Pool(
        name=service.pool,
        replicas=service.spec.predictor.min_replicas,
        model=uri.removeprefix(VOLUME_PREFIX),
        args=model.args,
        env=tuple(sorted((variable.name, variable.value) for variable in model.env if variable.value is not None)),
    )
