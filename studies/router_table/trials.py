"""The traces of the table, each with its fleet and its target for the first token.

    chats        synthetic: 20 tenants by Zipf's law, turns with a shared prefix
    adapters     the same, half of all chats with one of 200 adapters; 16 fit a replica's memory, 128 in all
    mooncake     conversations with shared blocks of 512 tokens; prompts up to 126,000 tokens, with 25 s of prefill
    azure        conversations without recorded text: no two prompts share a prefix
    servegen     clients with their own bursts; two fifths of a client's median prompt count as shared
    agents       OpenTelemetry runs in a closed loop: a call follows earlier ones; on four l40s-8b, since the prompts
                 are short, and a run's pauses are long compared with the service time of a faster fleet

The target is 2 s to the first token, or 15 s if prefill alone takes longer than 2 s. On h100-8b at 0.2 ms a token,
half of Mooncake's prompts take 1.4 s and one in twenty 7.9 s without other load.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from functions.api.ids import EngineName
from functions.simulator.experiment import Chats, RecordedWorkload, Workload
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.fleet.setting import POOL, AdapterTimes, PoolSetting, Setting
from functions.simulator.workload.agents import AgentRuns, read_runs
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import Traffic
from studies.routers.simulated import ROUTERS
from studies.servegen.clients import read_clients
from studies.servegen.day import BLOCK_TOKENS, ServeGenDay

_ADAPTERS = 200
_TRAFFIC = Traffic(requests_per_s=1.0, seconds=1.0)  # `Chats` sets both
_SERVEGEN_POOL, _SERVEGEN_SHARE = "language_m-large", 0.4
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Trial:
    """One trace with its fleet. It is small and frozen: another process receives it and reads the trace there."""

    name: str
    file: str  # below the folder of traces; empty: synthetic
    slo_s: float
    adapters: int = 0
    replicas: int = 8
    profile: str = "h100-8b"

    def workload(self, traces_dir: Path, requests: int, seeds: int) -> Workload:
        path = traces_dir / self.file
        match self.name:
            case "chats":
                return Chats(_TRAFFIC, requests)
            case "adapters":
                return Chats(Traffic(requests_per_s=1.0, seconds=1.0, adapters=_ADAPTERS, adapter_ratio=0.5), requests)
            case "servegen":
                return ServeGenHours(path, requests, seeds)
            case "agents":
                return AgentRuns(read_runs(path), requests)
            case _:
                return RecordedWorkload(path, requests, seeds)

    def setting(self, router: str, workload: Workload, seed: int) -> Setting:
        """Return the setting without admission queues: rejections must not hide the routers' effect."""
        names = tuple(EngineName(f"a{number}") for number in range(self.adapters))  # named as in `synthetic`
        pool = PoolSetting(
            name=POOL, profile=PROFILES[self.profile], replicas=self.replicas,
            adapters=AdapterTimes(names=names, gpu_slots=8, cpu_slots=16) if names else None,
        )  # fmt: skip
        return Setting(
            pools=(pool,), router=ROUTERS[router], admission=None, block_tokens=workload.block_tokens, seed=seed
        )


@dataclass(frozen=True, slots=True)
class ServeGenHours:
    """A `Workload`: each seed is another time of ServeGen's first day."""

    directory: Path
    requests: int
    seeds: int

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[WorkloadRequest]:
        begins_s = seed % self.seeds * (_DAY_S // self.seeds)
        clients = read_clients(self.directory, _SERVEGEN_POOL, begins_s, 3600)
        day = ServeGenDay(clients=clients, share_ratio=_SERVEGEN_SHARE)
        return islice(day.at_rate(requests_per_s, seed), self.requests)


TRIALS = MappingProxyType(
    {
        trial.name: trial
        for trial in (
            Trial("chats", "", 2.0),
            Trial("adapters", "", 2.0, adapters=_ADAPTERS),
            Trial("mooncake", "mooncake_fast25/conversation_trace.jsonl.gz", 15.0),
            Trial("azure", "azure_2023/AzureLLMInferenceTrace_conv.csv", 2.0),
            Trial("servegen", "servegen", 2.0),
            Trial("agents", "inference_perf_otel", 2.0, replicas=4, profile="l40s-8b"),
        )
    }
)
