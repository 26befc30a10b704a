"""A pool as the local target needs it: what an InferenceService says, without Kubernetes. A value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    name: str  # label shoal.dev/pool: the pool's name, and the base model's id
    replicas: int
    model: str  # directory name below the models directory, from `pvc://shoal-models/<model>`
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # sorted
    may_surge: bool = True  # a replica more for as long as the pool is changed

    @property
    def sleeps(self) -> bool:
        """Whether its warm engines are put to sleep; those on a CPU cannot be, and refuse the argument."""
        return "--enable-sleep-mode" in self.args
