"""Model of a request: one version in one pool, and the other pools that its tenant may use. `catalogue` resolves it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from functions.api.ids import Digest, EngineName, ModelId, PoolName, RolloutId
from functions.api.snapshot import Sticky, Task


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """One version of one model, chosen for one request."""

    requested: str  # as the caller wrote it; responses repeat it
    id: ModelId
    version: str
    digest: Digest
    engine_name: EngineName
    pool: PoolName
    is_adapter: bool
    context_window_tokens: int
    accelerators_per_replica: int = 1  # in the pool
    price_per_accelerator_hour: float = 0.0  # the operator's money
    split: "Split | None" = None  # rollout of the requested channel; this version is its control
    other_pools: tuple[PoolName, ...] = ()  # other pools of the model that the tenant may use, in order
    names: Mapping[Digest, str] = field(default_factory=dict)  # version names of a base model
    weights: Digest | None = None  # base weights that the replica must have loaded, if the base has several versions
    task: Task = "generate"  # task that the pool's engines were started for

    @property
    def served_as(self) -> str:
        """The value of the `x-shoal-model` header: `id@version`."""
        return f"{self.id}@{self.version}"

    def as_loaded(self, weights: Digest | None) -> tuple[str, Digest]:
        """Return version and digest of a base model's response, from the weights that its replica had loaded. They
        differ from the resolved version while only some replicas have restarted. An unnamed version is its digest."""
        if self.is_adapter or weights is None or weights == self.digest:
            return self.version, self.digest
        return self.names.get(weights, weights), weights


@dataclass(frozen=True, slots=True)
class Split:
    """Rollout in progress: a part of the requests, chosen by `decisions.rollout.split`, goes to the candidate."""

    rollout: RolloutId
    stage: int
    percent: int  # 1 to 99
    sticky: Sticky
    candidate: ResolvedModel  # its own `split` is None
    model: ModelId  # model whose channel is rolled out; for an adapter it may be its base
