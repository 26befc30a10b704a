"""Pools that this machine runs: declared by a checked configuration, overridden by the operator's target.

If an AutoscalingPolicy covers a pool, the loader has checked that minReplicas is within the policy's bounds. A pool
therefore starts with minReplicas and keeps that number until it is scaled. The target is stored on disk for the next
controller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from functions.api.declared import Declared, policy_minima
from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import Loaded
from functions.api.problems import Problem
from functions.api.snapshot import Task
from functions.artifacts.locations import WEIGHTS_SCHEME, weights_at
from functions.controller.local.files import replace_file
from functions.controller.local.ports import MAX_SLOTS

EngineKind = Literal["vllm", "sim"]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Engine kind, and number of replicas of each pool, as chosen with `shoal up`."""

    engine: EngineKind = "vllm"
    replicas: Annotated[int, msgspec.Meta(ge=1, le=20)] | None = None  # None means the InferenceService's number


def read_target(path: Path) -> Target:
    """Return the stored target, or the default one if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Target)
    except (OSError, msgspec.DecodeError):
        return Target()


def write_target(path: Path, target: Target) -> None:
    replace_file(path, msgspec.json.encode(target))


@dataclass(frozen=True, slots=True)
class Pool:
    name: str  # label shoal.dev/pool: name of the pool and id of the base model
    replicas: int
    model: str  # directory below the models directory: `pvc://shoal-models/<model>`, or `shoal://<model>`
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # sorted
    may_surge: bool = True  # one extra replica is allowed while the pool is changed
    task: Task = "generate"
    folders: tuple[str, ...] = ()  # folders of the first replicas, by number; the others use `model`

    def folder_of(self, number: int) -> str:
        """Return the folder that the engine of the replica with this number is started from: the assigned one, or else
        the pool's declared one."""
        return self.folders[number] if number < len(self.folders) else self.model

    @property
    def sleeps(self) -> bool:
        """True if the pool's warm engines are put to sleep. Engines on a CPU cannot sleep and reject the argument."""
        return "--enable-sleep-mode" in self.args


VOLUME_PREFIX = "pvc://shoal-models/"


def folder_at(uri: str) -> str | None:
    """Return the folder's name below the models directory for a weights URI or a volume of models (also before it is
    fetched), or None for any other URI."""
    weights = weights_at(uri)
    if weights is not None:
        return str(weights)
    folder = uri.removeprefix(VOLUME_PREFIX)
    return folder if uri.startswith(VOLUME_PREFIX) and folder and "/" not in folder else None


class PoolUnusable(Exception):
    """An InferenceService that the local target cannot run; the problem says what to change."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def pools_of(loaded: Loaded) -> tuple[Pool, ...]:
    """Return the pools, sorted by name; services without a pool label have none. Raises PoolUnusable if one cannot run
    here."""
    minima = policy_minima(loaded.objects)
    found = [pool_from(service, minima) for service in loaded.objects_of(InferenceService)]
    return tuple(sorted((pool for pool in found if pool is not None), key=lambda pool: pool.name))


def unusable_problems(loaded: Loaded, target: Target) -> tuple[Problem, ...]:
    """Return every problem because of which this machine cannot run the configuration."""
    problems: list[Problem] = []
    services: list[tuple[Declared[InferenceService], Pool]] = []
    minima = policy_minima(loaded.objects)
    for service in loaded.objects_of(InferenceService):
        try:
            pool = pool_from(service, minima)
        except PoolUnusable as error:
            problems.append(error.problem)
            continue
        if pool is not None:
            services.append((service, pool))
    count = sum(target.replicas if target.replicas is not None else pool.replicas for _, pool in services)
    if count > MAX_SLOTS:
        largest, _ = max(services, key=lambda found: found[1].replicas)
        message = f"{count} replicas are declared in all; this machine has ports for {MAX_SLOTS}"
        problems.append(largest.problem(["spec", "predictor", "minReplicas"], message))
    return tuple(sorted(problems))


def pool_from(service: Declared[InferenceService], minima: Mapping[str, int]) -> Pool | None:
    """Return the pool of a service, or None if the service has no pool label. Raises PoolUnusable if it cannot run
    here. `minima` has the number of replicas that each pool's AutoscalingPolicy starts with."""
    value = service.value
    model = value.spec.predictor.model
    if value.pool is None:
        return None
    if model is None:
        raise PoolUnusable(service.problem(["spec", "predictor", "model"], "is required, and not there"))
    uri = model.storage_uri or ""
    folder = folder_at(uri)
    if folder is None:
        message = (
            f"found {uri or 'nothing'}; allowed on one machine: {VOLUME_PREFIX}<name>, a directory below models/, or "
            f"{WEIGHTS_SCHEME}<name>@<version>, as shoal base push stores it"
        )
        raise PoolUnusable(service.problem(["spec", "predictor", "model", "storageUri"], message))
    return Pool(
        name=value.pool,
        replicas=value.bounds_under(minima.get(value.pool))[0],
        model=folder,
        args=model.args,
        env=tuple(sorted((variable.name, variable.value) for variable in model.env if variable.value is not None)),
        may_surge=value.spec.predictor.may_surge,
        task=value.task,
    )
