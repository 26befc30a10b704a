"""`shoal capacity`: memory that models need, conversations that fit, and replicas that a load takes.

The InferenceServices give the memory on each accelerator and the conversations that fit. With `--load`, the simulator
finds the replicas that keep the promised time to first token, and the cost of a million tokens. With `--nodes`,
replicas are placed on nodes. Exit status 1 if a model does not fit or a replica has no place.
`functions.decisions.capacity` has the formulas, `capacity_tables` prints.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from functions.api.kinds.inference_service import InferenceService
from functions.api.loader import load_files, read_files
from functions.api.problems import ConfigInvalid, Problem
from functions.cli.capacity_apart import compare, prefill_pool_of
from functions.cli.capacity_options import CapacityRequest
from functions.cli.capacity_tables import PoolSizing, show, show_json
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_error_console
from functions.decisions.capacity.accelerators import Accelerator, AcceleratorUnknown, accelerator
from functions.decisions.capacity.memory import plan_memory
from functions.decisions.capacity.model_shape import ModelShape, ShapeUnknown, from_config
from functions.decisions.capacity.packing import Packing, PlacementDemand, pack
from functions.decisions.capacity.service import ServedPool, served_pool
from functions.decisions.capacity.speed import speed_of
from functions.simulator.replicas_needed import OfferedLoad, Unreachable, profile_from, replicas_needed

DEFAULT_FOLDER = Path("inferenceservices")
_CONFIG_MAX_BYTES = 1_000_000
_HOST = Accelerator(name="CPU", memory_bytes=0, bytes_per_s=1.0, flops_16=1.0, flops_8=1.0)


def capacity(paths: Sequence[Path], wanted: CapacityRequest, *, as_json: bool) -> None:
    pools = [_with_memory(pool, wanted) for pool in _pools(paths, wanted)]
    unknown = [name for name in wanted.loads if name and name not in {each.pool.pool for each in pools}]
    if unknown:
        raise CommandRefused(
            f"--load names {unknown[0]!r}, which is not a pool of this configuration; "
            f"pools: {', '.join(each.pool.pool for each in pools)}"
        )
    reading = [each.pool for each in pools if each.pool.reads]
    for pool in reading:
        if pool.pool in wanted.loads:
            raise CommandRefused(
                f"{pool.pool} is a prefill pool of {pool.model} and answers no requests: use --load {pool.model}=…"
            )
    if "" in wanted.loads and len(pools) - len(reading) > 1:
        raise CommandRefused(
            "--load needs a pool if there are several, such as --load llama-3-8b=40; or choose one with --pool"
        )
    reporter = TerminalReporter(make_error_console())
    for each in pools:
        if not each.pool.reads:
            _find_replicas(each, wanted, reporter)
            reader = prefill_pool_of(each, pools)
            if reader is not None:
                compare(each, reader, reporter)
    packing = _packed(pools, wanted)
    if as_json:
        show_json(pools, packing)
    else:
        show(pools, packing)
    if any(not each.memory.fits or each.trouble for each in pools) or (packing is not None and packing.unplaced):
        raise typer.Exit(1)


def _pools(paths: Sequence[Path], wanted: CapacityRequest) -> list[ServedPool]:
    chosen = list(paths) or [DEFAULT_FOLDER]
    problems: list[Problem] = []
    try:
        loaded = load_files(read_files(chosen, Path.cwd(), problems), problems, None)
    except ConfigInvalid as error:
        raise CommandRefused(f"{error.problems[0]} (`shoal validate` shows all problems)") from error
    services = [each for each in loaded.objects_of(InferenceService) if each.value.pool is not None]
    services = [each for each in services if not wanted.pools or each.value.pool in wanted.pools]
    if not services:
        where = ", ".join(str(path) for path in chosen)
        named = " of that name" if wanted.pools else ""
        raise CommandRefused(
            f"there is no pool{named} in {where}: a pool is an InferenceService with the label shoal.dev/pool"
        )
    shape = _shape_of(wanted.model_dir)
    if shape is not None and len(services) > 1:
        raise CommandRefused("--model-dir describes one model, but there are several pools: choose one with --pool")
    try:
        return [served_pool(each.value, yaml.safe_load(each.document.text), shape) for each in services]
    except ShapeUnknown as error:
        raise CommandRefused(str(error)) from error


def _shape_of(directory: Path | None) -> ModelShape | None:
    if directory is None:
        return None
    file = directory / "config.json"
    try:
        if file.stat().st_size > _CONFIG_MAX_BYTES:
            raise CommandRefused(f"{file} is larger than a megabyte: it is not a model's config.json")
        config: Any = json.loads(file.read_bytes())
        if not isinstance(config, dict):
            raise CommandRefused(f"{file} is not a JSON object")
        return from_config(config, directory.resolve().name)
    except (OSError, ValueError) as error:
        raise CommandRefused(f"{file}: {error}") from error


def _with_memory(pool: ServedPool, wanted: CapacityRequest) -> PoolSizing:
    device = _device(pool, wanted)
    needs = pool.serving.accelerators
    if device is not None and pool.accelerators and pool.accelerators < needs:
        raise CommandRefused(
            f"{pool.pool} requests {pool.accelerators} accelerators, but its arguments divide it over {needs}"
        )
    memory = plan_memory(pool.shape, pool.serving, device or _HOST)
    speed = speed_of(pool.shape, pool.serving, device) if device is not None and pool.shape.has_cache else None
    price = wanted.prices.get(device.name, wanted.prices.get("")) if device is not None else None
    return PoolSizing(
        pool, device, memory, speed, price_per_hour=price, elsewhere_per_million=wanted.elsewhere_per_million
    )


def _device(pool: ServedPool, wanted: CapacityRequest) -> Accelerator | None:
    name = wanted.products.get(pool.pool, wanted.products.get("", pool.product))
    if name is None:
        if not pool.accelerators:
            if not pool.serving.cache_bytes:
                raise CommandRefused(f"{pool.pool} has no accelerator and no VLLM_CPU_KVCACHE_SPACE: use --accelerator")
            return None
        raise CommandRefused(
            f"{pool.pool} does not name its accelerator: set nodeSelector {{nvidia.com/gpu.product: …}}, "
            f"or use --accelerator {pool.pool}=NVIDIA-H100-80GB-HBM3"
        )
    try:
        return accelerator(name)
    except AcceleratorUnknown as error:
        raise CommandRefused(str(error)) from error


def _find_replicas(found: PoolSizing, wanted: CapacityRequest, reporter: TerminalReporter) -> None:
    requests_per_s = wanted.loads.get(found.pool.pool, wanted.loads.get(""))
    if requests_per_s is None or not found.memory.fits:
        return
    if found.speed is None:
        raise CommandRefused(f"the speed of {found.pool.pool} cannot be estimated: it runs on CPU, or has no KV cache")
    found.load = OfferedLoad(
        requests_per_s=requests_per_s,
        prompt_tokens=wanted.prompt_tokens,
        output_tokens=wanted.output_tokens,
        ttft_slo_s=wanted.ttft_slo_s,
        itl_slo_s=wanted.itl_slo_s,
    )
    profile = profile_from(found.speed, found.memory, found.pool.serving)
    with reporter.step(f"Replicas of {found.pool.pool}") as step:
        try:
            found.needed = replicas_needed(profile, found.load, 0, step.update)
        except Unreachable as error:
            found.trouble = str(error)


def _packed(pools: Sequence[PoolSizing], wanted: CapacityRequest) -> Packing | None:
    if not wanted.nodes:
        return None
    return pack(
        [
            PlacementDemand(each.pool.pool, each.device.name, each.pool.serving.accelerators, each.replicas)
            for each in pools
            if each.device is not None
        ],
        wanted.nodes,
    )
