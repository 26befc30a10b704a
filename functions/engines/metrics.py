"""Reader of the few metrics on vLLM's /metrics page that this project uses.

A page has 60 kB and some 1,500 lines; about 25 are read. Counters are totals since the engine started, so they fall to
zero when it restarts. Of several data-parallel engines behind one server, counts are summed and usage is the highest.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from functions.engines.errors import EngineGarbled

MAX_PAGE_BYTES = 8 << 20
_PREFIX = "vllm:"
_WANTED = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("num_preemptions_total", "iteration_tokens_total_count", "lora_requests_info", "cache_config_info"),
    *("inter_token_latency_seconds_sum", "inter_token_latency_seconds_count"),
    *("request_prefill_time_seconds_sum", "request_prefill_kv_computed_tokens_sum", "request_queue_time_seconds_sum"),
    *("e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count"),
    *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
    *("prompt_tokens_cached_by_source_total", "kv_offload_load_time_total"),
)
_PROCESS_START = "process_start_time_seconds"  # written by the client library, not by vLLM
_STARTS = (*(f"{_PREFIX}{name}{after}" for name in _WANTED for after in "{ "), f"{_PROCESS_START} ")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    running: int
    waiting: int
    waiting_deferred: int
    """Waiting requests held back because their adapter would exceed the limit."""
    kv_usage_ratio: float
    """Share of KV blocks in use, 0 to 1; cached but unused blocks count as free."""
    prompt_tokens_total: int
    generation_tokens_total: int
    iterations_total: int
    prefix_queries_tokens_total: int
    prefix_hits_tokens_total: int
    preemptions_total: int
    inter_token_s_total: float
    inter_tokens_total: int
    """Number of gaps between tokens: `inter_token_s_total / inter_tokens_total` is the mean gap."""
    prefill_s_total: float
    prefill_computed_tokens_total: int
    """Prompt tokens computed (not found in the cache) by requests that finished."""
    queue_s_total: float
    """Time in the engine's queue, summed over requests that finished; 0 if the engine does not report it."""
    e2e_s_total: float
    """Time from arrival to last token, summed over `finished_total` requests."""
    finished_total: int
    draft_tokens_total: int
    """Tokens that speculative decoding proposed; 0 without speculative decoding."""
    accepted_draft_tokens_total: int
    num_gpu_blocks: int | None
    block_size_tokens: int | None
    max_loras: int | None
    """Adapter slots; `None` if LoRA is off or no step was made yet."""
    running_adapters: frozenset[str]
    waiting_adapters: frozenset[str]
    process_began_unix_s: float | None = None
    host_kv_bytes: int = 0
    """Host memory for KV blocks; 0 if none, or if set by `--kv-transfer-config`, which the page does not show."""
    keeps_kv_in_host: bool = False
    """True if KV blocks are copied to host memory."""
    kv_load_s_total: float = 0.0
    """Time spent copying KV blocks back from host memory, summed over the engine's accelerators."""
    host_hit_tokens_total: int = 0
    """Prompt tokens found in host memory."""

    @property
    def kv_capacity_tokens(self) -> int | None:
        if self.num_gpu_blocks is None or self.block_size_tokens is None:
            return None
        return self.num_gpu_blocks * self.block_size_tokens


def parse_metrics(page: str) -> EngineMetrics:
    """Parse a metrics page. Raise EngineGarbled if it is too large or not an engine's page."""
    if len(page) > MAX_PAGE_BYTES:
        raise EngineGarbled(f"metrics page of {len(page)} characters")
    try:
        return _Samples(_read(page)).metrics()
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise EngineGarbled(f"metrics: {error}") from error


def _read(page: str) -> dict[str, list[Sample]]:
    wanted = [line for line in page.splitlines() if line.startswith(_STARTS)]
    by_name: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
        for sample in family.samples:
            by_name.setdefault(sample.name.removeprefix(_PREFIX), []).append(sample)
    return by_name


class _Samples:
    def __init__(self, by_name: dict[str, list[Sample]]) -> None:
        self._by_name = by_name

    def metrics(self) -> EngineMetrics:
        config = self._labels("cache_config_info")
        adapters = self._newest_labels("lora_requests_info")
        return EngineMetrics(
            running=self._count("num_requests_running"),
            waiting=self._count("num_requests_waiting"),
            waiting_deferred=self._deferred(),
            kv_usage_ratio=min(max(self._number("kv_cache_usage_perc", max), 0.0), 1.0),
            prompt_tokens_total=self._count("prompt_tokens_total"),
            generation_tokens_total=self._count("generation_tokens_total"),
            iterations_total=self._count("iteration_tokens_total_count"),
            prefix_queries_tokens_total=self._count("prefix_cache_queries_total"),
            prefix_hits_tokens_total=self._count("prefix_cache_hits_total"),
            preemptions_total=self._count("num_preemptions_total"),
            inter_token_s_total=self._number("inter_token_latency_seconds_sum", sum),
            inter_tokens_total=self._count("inter_token_latency_seconds_count"),
            prefill_s_total=self._number("request_prefill_time_seconds_sum", sum),
            prefill_computed_tokens_total=self._count("request_prefill_kv_computed_tokens_sum"),
            queue_s_total=self._number_if_there("request_queue_time_seconds_sum"),
            e2e_s_total=self._number("e2e_request_latency_seconds_sum", sum),
            finished_total=self._count("e2e_request_latency_seconds_count"),
            draft_tokens_total=self._count_if_there("spec_decode_num_draft_tokens_total"),
            accepted_draft_tokens_total=self._count_if_there("spec_decode_num_accepted_tokens_total"),
            num_gpu_blocks=_whole(config.get("num_gpu_blocks")),
            block_size_tokens=_whole(config.get("block_size")),
            max_loras=_whole(adapters.get("max_lora")),
            running_adapters=_names(adapters.get("running_lora_adapters")),
            waiting_adapters=_names(adapters.get("waiting_lora_adapters")),
            process_began_unix_s=self._number(_PROCESS_START, max) if _PROCESS_START in self._by_name else None,
            host_kv_bytes=_gibibytes(config.get("kv_offloading_size")),
            keeps_kv_in_host="kv_offload_load_time_total" in self._by_name,
            kv_load_s_total=self._number_if_there("kv_offload_load_time_total"),
            host_hit_tokens_total=self._from_host(),
        )

    def _number(self, name: str, combine: Callable[[Iterable[float]], float]) -> float:
        value = combine([sample.value for sample in self._by_name[name]])
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        return value

    def _count(self, name: str) -> int:
        return int(self._number(name, sum))

    def _number_if_there(self, name: str) -> float:
        return self._number(name, sum) if name in self._by_name else 0.0

    def _count_if_there(self, name: str) -> int:
        return self._count(name) if name in self._by_name else 0

    def _deferred(self) -> int:
        samples = self._by_name.get("num_requests_waiting_by_reason", [])
        return int(sum(sample.value for sample in samples if sample.labels.get("reason") == "deferred"))

    def _from_host(self) -> int:
        samples = self._by_name.get("prompt_tokens_cached_by_source_total", [])
        return int(sum(sample.value for sample in samples if sample.labels.get("source") == "host"))

    def _labels(self, name: str) -> dict[str, str]:
        samples = self._by_name.get(name, [])
        return dict(samples[0].labels) if samples else {}

    def _newest_labels(self, name: str) -> dict[str, str]:
        """Return the labels of the series with the largest value, because vLLM keeps past ones, valued by when they
        last applied. Empty if there is none."""
        samples = self._by_name.get(name, [])
        return dict(max(samples, key=lambda sample: sample.value).labels) if samples else {}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _gibibytes(text: str | None) -> int:
    """Convert GiB to bytes; 0 if the option is not set or is no usable number."""
    try:
        size = float(text or 0.0)
    except ValueError:
        return 0
    return int(size * 2**30) if 0.0 < size < 2**20 else 0


def _names(text: str | None) -> frozenset[str]:
    return frozenset(filter(None, (text or "").split(",")))
