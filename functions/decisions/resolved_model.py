"""Model of a request: one version of it, in one pool, with what its tenant may use besides. `catalogue` resolves it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from functions.api.ids import Digest, EngineName, ModelId, PoolName, RolloutId
from functions.api.snapshot import Sticky, Task


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """One version of one model, chosen for one request."""

    requested: str  # as the caller wrote it; answers repeat it
    id: ModelId
    version: str
    digest: Digest
    engine_name: EngineName
    pool: PoolName
    is_adapter: bool
    context_window_tokens: int
    accelerators_per_replica: int = 1  # of the pool
    price_per_accelerator_hour: float = 0.0  # the operator's money
    split: "Split | None" = None  # a rollout of the channel that was asked for; this version is its control
    other_pools: tuple[PoolName, ...] = ()  # of the model, that its tenant may use, in order
    names: Mapping[Digest, str] = field(default_factory=dict)  # of a base: its versions
    weights: Digest | None = None  # what its replica must have loaded, where the base has several versions
    task: Task = "generate"  # of the pool: what its engines were started for

    @property
    def served_as(self) -> str:
        """The `x-shoal-model` header: `id@version`."""
        return f"{self.id}@{self.version}"

    def as_loaded(self, weights: Digest | None) -> tuple[str, Digest]:
        """The version and the digest of an answer of a base, by what the replica that gave it had loaded: another than
        was meant, while some replicas have been started anew and others have not. Without a name, it is its digest."""
        if self.is_adapter or weights is None or weights == self.digest:
            return self.version, self.digest
        return self.names.get(weights, weights), weights


@dataclass(frozen=True, slots=True)
class Split:
    """A rollout in progress: a part of the requests goes to another version; `decisions.rollout.split` says which."""

    rollout: RolloutId
    stage: int
    percent: int  # 1 to 99
    sticky: Sticky
    candidate: ResolvedModel  # itself without a split
    model: ModelId  # whose channel it is: of an adapter perhaps its base, with which it goes
