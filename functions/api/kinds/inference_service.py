"""The parts of KServe's `InferenceService` that shoal reads: one per pool, named by the label `shoal.dev/pool`.

The kind is KServe's, so keys that shoal does not read are ignored; those that it reads are strict.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from functions.api.ids import is_name
from functions.api.kinds import kv_offload, prefill_role
from functions.api.kinds.base import Finding, MetadataName
from functions.api.problems import shown
from functions.api.snapshot import PoolRole, Task

API_VERSION = "serving.kserve.io/v1beta1"
POOL_LABEL = "shoal.dev/pool"
# set by the controller only: a second service of that pool, with another version
VERSION_OF_LABEL = "shoal.dev/version-of"
POOL_SERVICES = f"{POOL_LABEL},!{VERSION_OF_LABEL}"  # label selector of the services that people declare
TASK_LABEL = "shoal.dev/task"
ACCELERATORS_ANNOTATION = "shoal.dev/accelerators-per-replica"
PRICE_ANNOTATION = "shoal.dev/accelerator-price-per-hour"
MODEL_LABEL = "shoal.dev/model"
DEDICATED_TO_ANNOTATION = "shoal.dev/dedicated-to"
QUANTIZATION_ANNOTATION = "shoal.dev/quantization"
CAPACITY_ANNOTATION = "shoal.dev/capacity"
_CAPACITIES = ("reserved", "spot")
MAX_MODEL_LEN = "--max-model-len"
VLLM_FORMAT = "vLLM"
CONTEXT_ALLOWED = "a number of tokens such as 2048, 32k (x 1000) or 32K (x 1024)"

_CONTEXT = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,3})?)(?P<unit>[kKmM]?)")
_SERVICE_NAME = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_TASKS: tuple[Task, ...] = get_args(Task)
_MAX_LORA_NUMBER = 4096
MAX_ACCELERATORS = 4096  # per replica
_PRICE = re.compile(r"\d{1,6}(?:\.\d{1,6})?")
_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}

Count = Annotated[int, Field(ge=0, le=100_000)]


def is_pool(labels: Mapping[str, str]) -> bool:
    """Return True if these are the labels of a pool's own service on a cluster, not of one that the controller made for
    another version."""
    return POOL_LABEL in labels and VERSION_OF_LABEL not in labels


class Foreign(BaseModel):
    """A model that is strict in the keys that it reads and ignores the rest."""

    model_config = ConfigDict(
        extra="ignore", strict=True, frozen=True, alias_generator=to_camel, protected_namespaces=()
    )


class ServiceMetadata(Foreign):
    name: MetadataName
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class EnvVar(Foreign):
    """An environment variable. One without a value has a Kubernetes source, which the local target lacks."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    value: str | None = None


class ModelFormat(Foreign):
    name: str


class ServedModel(Foreign):
    model_format: ModelFormat
    storage_uri: str | None = None
    runtime: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    resources: Any = None  # as in Kubernetes, like the predictor's two: `decisions.capacity.service` reads them


class RollingUpdate(Foreign):
    max_surge: int | str | None = None


class DeploymentStrategy(Foreign):
    """Strategy of the Deployment that KServe creates, as in Kubernetes."""

    type: str | None = None
    rolling_update: RollingUpdate | None = None


class Predictor(Foreign):
    min_replicas: Count | None = None  # default: the minimum of its AutoscalingPolicy, else 1, as in KServe
    max_replicas: Count | None = None  # 0 means no limit in KServe
    deployment_strategy: DeploymentStrategy | None = None
    model: ServedModel | None = None
    containers: Any = None
    worker_spec: Any = None

    @property
    def may_surge(self) -> bool:
        """True if a change may start a replica before it ends one; by default it may (25 %, rounded up)."""
        strategy = self.deployment_strategy
        if strategy is None:
            return True
        surge = strategy.rolling_update.max_surge if strategy.rolling_update is not None else None
        return strategy.type in {None, "RollingUpdate"} and surge not in {0, "0", "0%"}


class InferenceServiceSpec(Foreign):
    predictor: Predictor


class InferenceService(Foreign):
    api_version: Literal["serving.kserve.io/v1beta1"]
    kind: Literal["InferenceService"]
    metadata: ServiceMetadata
    spec: InferenceServiceSpec

    @property
    def pool(self) -> str | None:
        """The pool that it serves; None for a service that is not a shoal pool."""
        return self.metadata.labels.get(POOL_LABEL)

    @property
    def task(self) -> Task:
        """Task of the model by its label, `generate` by default; an invalid label is a finding, and counts as the
        default."""
        found = self.metadata.labels.get(TASK_LABEL)
        return next((task for task in _TASKS if task == found), "generate")

    @property
    def model_name(self) -> str | None:
        """The model that its replicas serve: the pool's own name unless a label names another pool's model."""
        return self.metadata.labels.get(MODEL_LABEL) or self.pool

    @property
    def dedicated_to(self) -> tuple[str, ...]:
        """The only tenants whose requests it serves, sorted; empty if it serves all."""
        text = self.metadata.annotations.get(DEDICATED_TO_ANNOTATION, "")
        return tuple(sorted({name.strip() for name in text.split(",")} - {""}))

    @property
    def role(self) -> PoolRole:
        """Role of a pool next to others of its model: `prefill` computes prompts for those, and answers no request
        itself."""
        return prefill_role.role(self.metadata.labels)

    @property
    def quantization(self) -> str:
        """Quantization of its weights: the annotation, else the engine's argument; empty if there is none."""
        model = self.spec.predictor.model
        started_with = last_argument(model.args, "--quantization") if model is not None else None
        return self.metadata.annotations.get(QUANTIZATION_ANNOTATION) or started_with or ""

    @property
    def is_spot(self) -> bool:
        """True if its machines may be reclaimed at short notice; an invalid value is a finding, and counts as False."""
        return self.metadata.annotations.get(CAPACITY_ANNOTATION) == "spot"

    @property
    def kv_host_bytes(self) -> int | None:
        """Bytes of host memory for KV blocks that leave a replica's accelerators; None if its engine stores none
        there."""
        model = self.spec.predictor.model
        args = model.args if model is not None else ()
        return kv_offload.host_bytes(
            last_argument(args, kv_offload.SIZE), last_argument(args, kv_offload.TRANSFER_CONFIG)
        )

    @property
    def context_window_tokens(self) -> int | None:
        """Context window, by `--max-model-len` in the engine's arguments; None if it is absent or unreadable."""
        model = self.spec.predictor.model
        text = last_argument(model.args, MAX_MODEL_LEN) if model is not None else None
        return parse_tokens(text) if text is not None else None

    @property
    def annotated_accelerators(self) -> int | None:
        """Accelerators per replica by its annotation; None without a valid number."""
        return _count(self.metadata.annotations.get(ACCELERATORS_ANNOTATION), MAX_ACCELERATORS)

    @property
    def price_per_accelerator_hour(self) -> float | None:
        """Price in the operator's currency by its annotation; None without a valid price."""
        text = self.metadata.annotations.get(PRICE_ANNOTATION)
        return float(text) if text is not None and _PRICE.fullmatch(text) is not None and float(text) > 0.0 else None

    @property
    def replica_bounds(self) -> tuple[int, int]:
        """Declared fewest and most replicas, 1 if not declared; for a maximum of 0 (no limit), the largest number that
        the contract allows."""
        return self.bounds_under(None)

    def bounds_under(self, policy_min: int | None) -> tuple[int, int]:
        """Return fewest and most replicas under an AutoscalingPolicy with this `replicas.min`, which replaces an
        undeclared minimum; None means that there is no policy, and 1 replaces it."""
        predictor = self.spec.predictor
        least = predictor.min_replicas
        if least is None:
            least = 1 if policy_min is None else policy_min
        most = predictor.max_replicas
        return least, 100_000 if most == 0 else max(most or 1, least)

    def findings(self) -> Iterator[Finding]:
        """Yield problems of a pool's service, including rules of KServe's webhooks that no schema has; none for a
        service that is no pool."""
        if self.pool is None:
            return
        if not is_name(self.pool):
            message = f"found {shown(self.pool)}; allowed: a name of 1 to 63 of a-z 0-9 . _ -"
            yield Finding(("metadata", "labels", POOL_LABEL), message)
        task = self.metadata.labels.get(TASK_LABEL, self.task)
        if task != self.task:
            yield Finding(
                ("metadata", "labels", TASK_LABEL), f"found {shown(task)}; allowed: one of {', '.join(_TASKS)}"
            )
        yield from self._model_and_owners()
        is_beside = self.model_name != self.pool
        yield from prefill_role.findings(self.metadata.labels, self.metadata.annotations, is_beside=is_beside)
        model = self.spec.predictor.model
        size = last_argument(model.args, kv_offload.SIZE) if model is not None else None
        yield from kv_offload.findings(size, self.metadata.annotations)
        if _SERVICE_NAME.fullmatch(self.metadata.name) is None:
            message = f"found {shown(self.metadata.name)}; allowed by KServe: a-z 0-9 -, beginning with a letter"
            yield Finding(("metadata", "name"), message)
        yield from _replica_bounds(self.spec.predictor)
        yield from self._annotated()
        if self.spec.predictor.model is None:
            yield Finding(("spec", "predictor", "model"), "is required, and not there: a pool runs a model")
        else:
            yield from _served_model(self.spec.predictor.model)

    def _annotated(self) -> Iterator[Finding]:
        """Yield problems of the annotations that bills are computed from, and of the capacity type."""
        capacity = self.metadata.annotations.get(CAPACITY_ANNOTATION, "reserved")
        if capacity not in _CAPACITIES:
            message = f"found {shown(capacity)}; allowed: {', '.join(_CAPACITIES)}"
            yield Finding(("metadata", "annotations", CAPACITY_ANNOTATION), message)
        for name, value, allowed in (
            (ACCELERATORS_ANNOTATION, self.annotated_accelerators, f"a whole number from 1 to {MAX_ACCELERATORS}"),
            (PRICE_ANNOTATION, self.price_per_accelerator_hour, "a number above 0, such as 2.5"),
        ):
            found = self.metadata.annotations.get(name)
            if found is not None and value is None:
                yield Finding(("metadata", "annotations", name), f"found {shown(found)}; allowed: {allowed}")

    def _model_and_owners(self) -> Iterator[Finding]:
        """Yield problems of the label for its model and the annotation for its tenants: an invalid value must not open
        a pool to all tenants."""
        if self.model_name is not None and not is_name(self.model_name):
            message = f"found {shown(self.model_name)}; allowed: the name of the pool whose model it serves"
            yield Finding(("metadata", "labels", MODEL_LABEL), message)
        owners = self.dedicated_to
        if DEDICATED_TO_ANNOTATION in self.metadata.annotations and not all(map(is_name, owners or ("",))):
            found = shown(self.metadata.annotations[DEDICATED_TO_ANNOTATION])
            message = f"found {found}; allowed: names of tenants, separated by commas"
            yield Finding(("metadata", "annotations", DEDICATED_TO_ANNOTATION), message)


_PARALLEL = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
)


def accelerators_by_arguments(args: tuple[str, ...]) -> int:
    """Return the accelerators that all ranks of an engine with these arguments need together, from 1 to
    MAX_ACCELERATORS."""
    ranks = 1
    for long, short in _PARALLEL:
        ranks *= _count(last_argument(args, long) or last_argument(args, short), MAX_ACCELERATORS) or 1
    return min(ranks, MAX_ACCELERATORS)


def _replica_bounds(predictor: Predictor) -> Iterator[Finding]:
    most = predictor.max_replicas
    if most and predictor.min_replicas is not None and most < predictor.min_replicas:
        message = f"found {most}; allowed: at least minReplicas, {predictor.min_replicas}"
        yield Finding(("spec", "predictor", "maxReplicas"), message)


def _served_model(model: ServedModel) -> Iterator[Finding]:
    path = ("spec", "predictor", "model")
    text = last_argument(model.args, MAX_MODEL_LEN)
    if text is None or parse_tokens(text) is None:
        message = f"{MAX_MODEL_LEN} is required, with {CONTEXT_ALLOWED}: the gateway must know the context window"
        yield Finding((*path, "args"), message)
    if model.runtime is None and model.model_format.name != VLLM_FORMAT and model.model_format.name.lower() == "vllm":
        message = f"found {shown(model.model_format.name)}; allowed: {VLLM_FORMAT}, since KServe matches case"
        yield Finding((*path, "modelFormat", "name"), message)
    for index, variable in enumerate(model.env):
        if variable.name == "PYTHONPATH":
            yield Finding((*path, "env", index, "name"), "PYTHONPATH is not allowed by KServe")


def last_argument(args: tuple[str, ...], option: str) -> str | None:
    """Return the value of `--option=value` or `--option value`, None if it is absent; the last one counts, as in
    argparse. An underscore in the option's name counts as a hyphen."""
    value = None
    for index, argument in enumerate(args):
        name, equals, attached = argument.partition("=")
        if name.replace("_", "-") != option:
            continue
        if equals:
            value = attached
        elif index + 1 < len(args):
            value = args[index + 1]
    return value


def max_adapters(args: tuple[str, ...]) -> int | None:
    """Return the number of adapters that an engine with these arguments holds in host memory; None if it has no
    adapters.

    With one more, it would read evicted ones from the disk during a step. Worked example
    (test_adapters_follow_the_engines_cache): `--max-cpu-loras=8` gives 8; the default is --max-loras, whose own is
    1.
    """
    for option in ("--max-cpu-loras", "--max-loras"):
        number = _positive(last_argument(args, option))
        if number is not None:
            return number
    return 1 if _takes_adapters(args) else None


def max_lora_rank(args: tuple[str, ...]) -> int | None:
    """Return the largest rank that an engine with these arguments loads, 16 by default; None if it has no adapters."""
    said = _positive(last_argument(args, "--max-lora-rank"))
    return said if said is not None else 16 if _takes_adapters(args) else None  # vLLM's default


def _takes_adapters(args: tuple[str, ...]) -> bool:
    return any(argument.replace("_", "-") == "--enable-lora" for argument in args)


def _positive(text: str | None) -> int | None:
    return _count(text, _MAX_LORA_NUMBER)


def _count(text: str | None, most: int) -> int | None:
    """Parse a whole number from 1 to `most`; None for any other text."""
    return int(text) if text is not None and text.isdecimal() and 0 < int(text[:9]) <= most else None


def parse_tokens(text: str) -> int | None:
    """Parse vLLM's human-readable integers: `2048`, `25.6k`, `32K`; None for any other text, zero included."""
    match = _CONTEXT.fullmatch(text)
    if match is None or ("." in match["number"] and match["unit"] not in {"k", "m"}):
        return None
    tokens = float(match["number"]) * _UNITS[match["unit"]]
    return int(tokens) if tokens >= 1 and tokens.is_integer() else None
