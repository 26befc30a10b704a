"""Engine profile of a pool's InferenceService: the annotated one, or else one computed from its specification.

    annotation shoal.dev/simulator-profile: h100-8b           of `simulator.fleet.engine_profile`, or a measured one
    annotation shoal.dev/accelerator-price-per-hour: "2.5"    per accelerator, in the operator's currency; default 1

Without the first annotation, memory and speed are computed from the model's shape, the accelerators and the engine's
arguments (`decisions.capacity`). A pool without accelerators gets the profile measured on CPU, with the cache size
from its environment. Every plan prints the assumed engine, since a measured one is better. An annotated profile has
its own speeds, but `--max-num-seqs` and `--max-num-batched-tokens` of the service apply.

Worked example (test_an_engine_from_hardware_and_arguments): Llama 8B on one H100 with --max-num-seqs=128: 8.3 ms per
step, 0.036 ms per prompt token, 128 sequences.
"""

from dataclasses import dataclass, replace

from functions.decisions.capacity.accelerators import Accelerator, AcceleratorUnknown, accelerator
from functions.decisions.capacity.memory import Serving, plan_memory
from functions.decisions.capacity.model_shape import ModelShape, ShapeUnknown
from functions.decisions.capacity.service import ARCHITECTURE_ANNOTATION, ServedPool, served_pool
from functions.decisions.capacity.speed import speed_of
from functions.simulator.fleet.engine_profile import PROFILES, EngineProfile
from functions.simulator.plan.declarations import PoolDeclaration
from functions.simulator.replicas_needed import profile_from

PROFILE_ANNOTATION = "shoal.dev/simulator-profile"
ASSUMED_PRODUCT = "NVIDIA-H100-80GB-HBM3"  # for accelerators without a product name
_CPU_PROFILES = ("vllm-cpu-smollm2", "sim")  # the first one that exists
_LEAST_KV_TOKENS = 1024


class EngineImpossible(ValueError):
    """The engine would not start or cannot be determined; the message says how to correct the InferenceService."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine profile, with a description of its origin."""

    profile: EngineProfile
    words: str
    is_assumed: bool  # True without an annotation that names a profile
    accelerators: int  # per replica; 1 for a replica without any
    price_is_known: bool


def choose_engine(declaration: PoolDeclaration) -> Chosen:
    """Return the engine of one pool: the profile that its annotation names, else one for its model and hardware. Raise
    EngineImpossible if it would not start or cannot be determined."""
    annotations = declaration.service.metadata.annotations
    named = annotations.get(PROFILE_ANNOTATION)
    if named is not None and named not in PROFILES:
        raise EngineImpossible(
            f"pool {declaration.pool}: {PROFILE_ANNOTATION} is {named!r}; allowed: {', '.join(PROFILES)}"
        )
    served = _served(declaration, is_named=named is not None)
    if named is not None:
        profile, words = PROFILES[named], f"{named}, by its annotation"
    elif served is None or not served.accelerators:
        profile, words = _on_cpu(served)
    else:
        profile, words = _on_accelerators(declaration, served)
    count = max(1, served.accelerators) if served is not None else 1
    price = declaration.service.price_per_accelerator_hour
    profile = replace(profile, price_per_hour=(price or 1.0) * count)
    return Chosen(_with_arguments(profile, declaration), words, named is None, count, price is not None)


def _served(declaration: PoolDeclaration, *, is_named: bool) -> ServedPool | None:
    """Return the served model and hardware; None if the model is unknown, which only a named profile allows."""
    try:
        return served_pool(declaration.service, declaration.document)
    except ShapeUnknown as error:
        if is_named:
            return None
        raise EngineImpossible(
            f"pool {declaration.pool}: {error}. Say which model it is with the annotation {ARCHITECTURE_ANNOTATION}, "
            f"or which engine with {PROFILE_ANNOTATION} ({', '.join(PROFILES)})"
        ) from error


def _on_cpu(served: ServedPool | None) -> tuple[EngineProfile, str]:
    name = next(each for each in _CPU_PROFILES if each in PROFILES)
    words = f"{name}, since it requests no accelerator"
    if served is None or not served.serving.cache_bytes:
        return PROFILES[name], words
    memory = plan_memory(served.shape, served.serving, accelerator(ASSUMED_PRODUCT))
    return replace(PROFILES[name], kv_tokens=max(_LEAST_KV_TOKENS, memory.kv_tokens)), words


def _on_accelerators(declaration: PoolDeclaration, served: ServedPool) -> tuple[EngineProfile, str]:
    product = served.product or ASSUMED_PRODUCT
    try:
        device = accelerator(product)
    except AcceleratorUnknown as error:
        raise EngineImpossible(
            f"pool {declaration.pool}: {error}; or name its engine with the annotation {PROFILE_ANNOTATION}"
        ) from error
    profile = _computed(declaration, served.shape, served.serving, device)
    assumed = "" if served.product else " (assumed: it names no product)"
    what = f"{served.shape.name} on {served.accelerators} x {device.name.removeprefix('NVIDIA-')}{assumed}"
    return profile, f"computed: {what}"


def _computed(declaration: PoolDeclaration, shape: ModelShape, serving: Serving, device: Accelerator) -> EngineProfile:
    memory = plan_memory(shape, serving, device)
    if not memory.fits and shape.has_cache:
        raise EngineImpossible(
            f"pool {declaration.pool}: {shape.name} does not fit {serving.accelerators} x {device.name}: "
            f"{-memory.cache / 2**30:.1f} GiB are missing on each; use more accelerators, or fewer bits"
        )
    return profile_from(speed_of(shape, serving, device), memory, serving)


def _with_arguments(profile: EngineProfile, declaration: PoolDeclaration) -> EngineProfile:
    budget = declaration.tokens("--max-num-batched-tokens") or profile.step_budget_tokens
    sequences = declaration.tokens("--max-num-seqs") or min(profile.max_sequences, budget)
    if budget < sequences:
        raise EngineImpossible(
            f"pool {declaration.pool}: vLLM does not start with --max-num-batched-tokens={budget} below "
            f"--max-num-seqs={sequences}: raise the first or lower the second"
        )
    return replace(profile, step_budget_tokens=max(2, budget), max_sequences=max(1, min(sequences, budget - 1)))
