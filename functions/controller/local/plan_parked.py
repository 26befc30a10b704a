"""Plan parked processes: one process that has imported the engine, for each environment that engines are started in.

Every engine with that environment is forked from it (`children`). One is enough for all replicas of a pool, and for
several pools that differ only in arguments. SHOAL_PARKED_ENGINES limits their number; the first environments by pool
name get one, also for pools without replicas, which benefit most. A parked process starts only after its engines have
been ready; at the start of a fleet it would compete with them for the processor.

Pure. `functions/engines/parked` is the process.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from functions import engines
from functions.controller.local.context import PlanContext
from functions.controller.local.pools import EngineKind, Pool
from functions.controller.local.spec import PathProbe, ProcessSpec, Timing

WAITING = Path(engines.__file__).parent / "parked" / "waiting.py"
# Variables of a single replica, which engines read only when they start to work; as `LATE` of the parked process.
_LATE = frozenset({"VLLM_CACHE_ROOT"})
# Modules to import too, if they exist: an engine imports them only after it has parsed its arguments.
_ALSO: dict[EngineKind, tuple[str, ...]] = {
    "vllm": (
        "vllm.v1.engine.async_llm",
        "vllm.v1.engine.core",
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu_model_runner",
    ),
    "sim": ("functions.engines.sim.server",),
}
_Environment = tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]


def with_parked(
    context: PlanContext, specs: Iterable[ProcessSpec], templates: Iterable[tuple[Pool, ProcessSpec]], kind: EngineKind
) -> list[ProcessSpec]:
    """Return the specs plus the parked processes that their engines are forked from. `templates` has an engine spec of
    each pool, with or without replicas."""
    names: dict[_Environment, str] = {}
    for pool, template in templates:
        if len(names) < context.parked_engines:
            names.setdefault(_environment(template), _process_name(pool, _environment(template)))
    found = [replace(spec, forked_from=names.get(_environment(spec))) if _is_engine(spec) else spec for spec in specs]
    parked = [
        _parked(context, name, environment, kind, tuple(spec.name for spec in found if spec.forked_from == name))
        for environment, name in names.items()
    ]
    return found + parked


def _process_name(pool: Pool, environment: _Environment) -> str:
    """Return a name that is unique to the environment. If the environment changes, one process is added and the other
    removed, and no change waits for it."""
    return f"parked-{pool.name}-{hashlib.sha256(json.dumps(environment).encode()).hexdigest()[:8]}"


def _parked(
    context: PlanContext, name: str, environment: _Environment, kind: EngineKind, engines: tuple[str, ...]
) -> ProcessSpec:
    (python, _, module), env, inherits = environment
    socket = context.layout.socket(f"{name}.sock")
    return ProcessSpec(
        name=name,
        role="parked",
        argv=(python, str(WAITING), str(socket), module, *_ALSO[kind]),
        env=env,
        inherits=inherits,
        readiness=PathProbe(socket),
        after=engines,
        timing=Timing(start_s=600, drain_s=2),
        door=socket,
    )


def _environment(engine: ProcessSpec) -> _Environment:
    env = tuple((name, value) for name, value in engine.env if name not in _LATE)
    return engine.argv[:3], env, engine.inherits


def _is_engine(spec: ProcessSpec) -> bool:
    return spec.role == "engine"
