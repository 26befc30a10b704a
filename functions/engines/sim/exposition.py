"""/metrics page with vLLM's names, labels and help texts (v1/metrics/loggers.py), rendered by prometheus_client."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.core import Histogram
from functions.engines.sim.live import Clock, LiveEngine
from functions.engines.sim.model import AdapterTable
from functions.engines.sim.sequence import Sequence

_LABELS = ("model_name", "engine")
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
_CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
_ADMISSION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
_ENGINE = "0"


class VllmCollector(Collector):
    def __init__(
        self, engine: LiveEngine, adapters: AdapterTable, clock: Clock, *, model_name: str, kv_bytes_per_token: int = 0
    ) -> None:
        self._engine = engine
        self._kv_block_bytes = kv_bytes_per_token * engine.core.limits.block_size_tokens
        self._adapters = adapters
        self._clock = clock
        self._model_name = model_name
        self._labels = (model_name, _ENGINE)

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()
        if self._engine.core.limits.max_loras:
            yield self._lora_info()
        yield self._cache_config()

    def _gauges(self) -> Iterator[Metric]:
        scheduler = self._engine.core.scheduler
        waiting, deferred = len(scheduler.waiting), min(scheduler.deferred_seqs, len(scheduler.waiting))
        running = len(scheduler.running)
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        by_reason = {"capacity": waiting - deferred, "deferred": deferred}
        yield self._by("num_requests_waiting_by_reason", "Number of waiting requests by reason.", "reason", by_reason)
        asleep = self._engine.slumber.state
        states = {state: int(state == asleep) for state in ("awake", "weights_offloaded", "discard_all")}
        yield self._by("engine_sleep_state", "Engine sleep state.", "sleep_state", states)
        usage = scheduler.blocks.usage_ratio
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", usage)

    def _counters(self) -> Iterator[Metric]:
        stats = self._engine.core.stats
        queries = "Prefix cache queries, in terms of number of queried tokens."
        hits = "Prefix cache hits, in terms of number of cached tokens."
        computed = stats.prompt_tokens - stats.cached_prompt_tokens - stats.external_hits_tokens
        sources = {
            "local_compute": computed,
            "local_cache_hit": stats.cached_prompt_tokens,
            "external_kv_transfer": stats.external_hits_tokens,
        }
        tiers = dict.fromkeys(_CACHE_SOURCES, 0) | {
            "device": stats.prefix_hits_tokens,
            "host": stats.host_hits_tokens,
            "p2p": stats.external_hits_tokens - stats.host_hits_tokens,
        }
        finished = {reason: stats.finished[reason] for reason in _FINISHED_REASONS}
        yield self._counter("prefix_cache_queries", queries, stats.prefix_queries_tokens)
        yield self._counter("prefix_cache_hits", hits, stats.prefix_hits_tokens)
        yield self._counter("external_prefix_cache_queries", f"External {queries}", stats.external_queries_tokens)
        yield self._counter("external_prefix_cache_hits", f"External {hits}", stats.external_hits_tokens)
        yield self._counter("mm_cache_queries", "Multi-modal cache queries.", 0)
        yield self._counter("mm_cache_hits", "Multi-modal cache hits.", 0)
        preemptions = "Cumulative number of preemption from the engine."
        yield self._counter("num_preemptions", preemptions, stats.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens)
        yield self._by("prompt_tokens_by_source", "Number of prompt tokens by source.", "source", sources, counter=True)
        cached = "Number of cached prompt tokens (local + external)."
        yield self._counter("prompt_tokens_cached", cached, stats.cached_prompt_tokens + stats.host_hits_tokens)
        by_tier = "Prefix-cache hit tokens by the cache tier that supplied them."
        yield self._by("prompt_tokens_cached_by_source", by_tier, "source", tiers, counter=True)
        yield self._counter("generation_tokens", "Number of generation tokens processed.", stats.generation_tokens)
        success = "Count of successfully processed requests."
        yield self._by("request_success", success, "finished_reason", finished, counter=True)
        yield self._rejections()
        if self._engine.core.limits.draft_tokens:
            yield from self._speculation()
        if self._engine.core.limits.num_host_blocks:
            yield from self._offloading()

    def _speculation(self) -> Iterator[Metric]:
        """Yield the metrics that vLLM has with `--speculative-config`."""
        stats, at_once = self._engine.core.stats, self._engine.core.limits.draft_tokens
        accepted = {str(place): stats.accepted_draft_tokens[place] for place in range(at_once)}
        yield self._counter("spec_decode_num_drafts", "Number of spec decoding drafts.", stats.drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Number of draft tokens.", stats.drafts * at_once)
        yield self._counter("spec_decode_num_accepted_tokens", "Number of accepted tokens.", sum(accepted.values()))
        by_place = "Accepted tokens per draft position."
        yield self._by("spec_decode_num_accepted_tokens_per_pos", by_place, "position", accepted, counter=True)

    def _offloading(self) -> Iterator[Metric]:
        """Yield the metrics that vLLM has with an offloading connector. Storing takes no time here."""
        host, block_bytes = self._engine.core.scheduler.host, self._kv_block_bytes
        loaded, stored = host.reloaded_blocks, host.stored_blocks
        to_gpu, from_gpu = "from offload storage to GPU", "from GPU to offload storage"
        yield self._counter("kv_offload_load_bytes", f"Total bytes loaded {to_gpu}.", loaded * block_bytes)
        seconds = f"Total load time {to_gpu}, in seconds."
        yield self._counter("kv_offload_load_time", seconds, loaded * host.block_reload_s)
        yield self._counter("kv_offload_store_bytes", f"Total bytes stored {from_gpu}.", stored * block_bytes)

    def _histograms(self) -> Iterator[Metric]:
        stats = self._engine.core.stats
        shown = {
            "request_prompt_tokens": ("Number of prefill tokens processed.", stats.request_prompt_tokens),
            "request_generation_tokens": ("Number of generation tokens processed.", stats.request_generation_tokens),
            "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", stats.iteration_tokens),
            "request_max_num_generation_tokens": (
                "Histogram of maximum number of requested generation tokens.",
                stats.request_max_generation_tokens,
            ),
            "request_params_n": ("Histogram of the n request parameter.", stats.request_n),
            "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", stats.request_max_tokens),
            "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", stats.ttft_s),
            "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", stats.itl_s),
            "request_time_per_output_token_seconds": (
                "Histogram of time_per_output_token_seconds per request.",
                stats.time_per_output_token_s,
            ),
            "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", stats.e2e_s),
            "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", stats.queue_s),
            "request_inference_time_seconds": (
                "Histogram of time spent in RUNNING phase for request.",
                stats.inference_s,
            ),
            "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", stats.prefill_s),
            "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", stats.decode_s),
            "request_num_preemptions": (
                "Histogram of the number of times a request was preempted.",
                stats.request_preemptions,
            ),
            "request_prefill_kv_computed_tokens": (
                "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
                stats.request_computed_tokens,
            ),
        }
        for name, (text, histogram) in shown.items():
            yield self._histogram(name, text, histogram)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _by(self, name: str, text: str, label: str, values: dict[str, int], *, counter: bool = False) -> Metric:
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        family = kind(f"vllm:{name}", text, labels=(*_LABELS, label))
        for value, amount in values.items():
            family.add_metric((*self._labels, value), amount)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        family.add_metric(self._labels, histogram.cumulative(), histogram.total)
        return family

    def _rejections(self) -> Metric:
        text = "Number of admission attempts rejected by a queue limit, by reason."
        family = CounterMetricFamily("vllm:admission_rejections", text, labels=("model_name", "reason"))
        for reason in _ADMISSION_REASONS:
            family.add_metric((self._model_name, reason), self._engine.core.stats.rejections[reason])
        return family

    def _lora_info(self) -> Metric:
        """Return the metric of adapters that have requests, not of loaded ones. Its value is the wall clock."""
        scheduler = self._engine.core.scheduler
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Running stats on lora requests.", labels=labels)
        waiting, running = self._names(scheduler.waiting), self._names(scheduler.running)
        family.add_metric((str(self._engine.core.limits.max_loras), waiting, running), self._clock.wall_s())
        return family

    def _names(self, seqs: list[Sequence]) -> str:
        wanted: dict[AdapterId, None] = dict.fromkeys(seq.adapter for seq in seqs if seq.adapter is not None)
        by_id = {adapter.adapter_id: adapter.name for adapter in self._adapters}
        return ",".join(by_id.get(adapter_id, "") for adapter_id in wanted)

    def _cache_config(self) -> Metric:
        limits = self._engine.core.limits
        shown = {
            "block_size": limits.block_size_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": limits.enable_prefix_caching,
            "engine": _ENGINE,
            "hash_block_size": None,
            "kv_cache_max_concurrency": limits.num_kv_blocks * limits.block_size_tokens / limits.max_model_len_tokens,
            "kv_cache_size_tokens": limits.num_kv_blocks * limits.block_size_tokens,
            "kv_offloading_size": limits.num_host_blocks * self._kv_block_bytes / 2**30 or None,
            "num_cpu_blocks": None,
            "num_gpu_blocks": limits.num_kv_blocks,
            "prefix_caching_hash_algo": "sha256",
        }
        text = "Information of the LLMEngine CacheConfig"
        family = GaugeMetricFamily("vllm:cache_config_info", text, labels=tuple(shown))
        family.add_metric(tuple(map(str, shown.values())), 1)
        return family


def registry_of(collector: VllmCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)  # vLLM's page has these metrics too
    return registry
