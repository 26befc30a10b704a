"""/metrics: the names, labels and types that dashboards, the router and the autoscaler read."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from functions.engines.client import EngineClient
from tests.contract.servers import MODEL
from tests.contract.talk import chat

ENGINE = {"model_name", "engine"}
EXPECTED: dict[str, tuple[str, set[str]]] = {
    "vllm:num_requests_running": ("gauge", ENGINE),
    "vllm:num_requests_waiting": ("gauge", ENGINE),
    "vllm:num_requests_waiting_by_reason": ("gauge", ENGINE | {"reason"}),
    "vllm:engine_sleep_state": ("gauge", ENGINE | {"sleep_state"}),
    "vllm:kv_cache_usage_perc": ("gauge", ENGINE),
    "vllm:prefix_cache_queries": ("counter", ENGINE),
    "vllm:prefix_cache_hits": ("counter", ENGINE),
    "vllm:external_prefix_cache_queries": ("counter", ENGINE),
    "vllm:external_prefix_cache_hits": ("counter", ENGINE),
    "vllm:num_preemptions": ("counter", ENGINE),
    "vllm:prompt_tokens": ("counter", ENGINE),
    "vllm:prompt_tokens_by_source": ("counter", ENGINE | {"source"}),
    "vllm:prompt_tokens_cached": ("counter", ENGINE),
    "vllm:prompt_tokens_cached_by_source": ("counter", ENGINE | {"source"}),
    "vllm:generation_tokens": ("counter", ENGINE),
    "vllm:request_success": ("counter", ENGINE | {"finished_reason"}),
    "vllm:admission_rejections": ("counter", {"model_name", "reason"}),
    "vllm:lora_requests_info": ("gauge", {"max_lora", "waiting_lora_adapters", "running_lora_adapters"}),
}
HISTOGRAMS = (
    *("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_params_n"),
    *("request_max_num_generation_tokens", "request_params_max_tokens", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_num_preemptions", "request_prefill_kv_computed_tokens"),
)
BUCKETS = {
    "vllm:time_to_first_token_seconds": (22, "0.001", "2560.0"),
    "vllm:inter_token_latency_seconds": (19, "0.01", "80.0"),
    "vllm:e2e_request_latency_seconds": (21, "0.3", "7680.0"),
    "vllm:iteration_tokens_total": (13, "1.0", "16384.0"),
    "vllm:request_prompt_tokens": (10, "1.0", "1000.0"),
    "vllm:request_params_n": (5, "1.0", "20.0"),
}


async def families(http: httpx.AsyncClient) -> dict[str, tuple[str, list[set[str]]]]:
    await http.post("/v1/chat/completions", json=chat(max_tokens=2))
    answer = await http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    return {
        family.name: (family.type, [set(sample.labels) for sample in family.samples if "_created" not in sample.name])
        for family in text_string_to_metric_families(answer.text)
    }


async def test_names_types_and_labels(http: httpx.AsyncClient) -> None:
    seen = await families(http)
    for name, (kind, labels) in EXPECTED.items():
        assert seen[name][0] == kind, name
        assert all(have == labels for have in seen[name][1]), (name, seen[name][1])


async def test_histograms_have_the_engine_labels_and_vllms_buckets(http: httpx.AsyncClient) -> None:
    answer = await http.get("/metrics")
    seen = {family.name: family for family in text_string_to_metric_families(answer.text)}
    for name in HISTOGRAMS:
        family = seen[f"vllm:{name}"]
        assert family.type == "histogram", name
        assert all(set(sample.labels) - {"le"} == ENGINE for sample in family.samples), name
    for name, (count, first, last) in BUCKETS.items():
        bounds = [sample.labels["le"] for sample in seen[name].samples if sample.name.endswith("_bucket")]
        assert (len(bounds), bounds[0], bounds[-2], bounds[-1]) == (count + 1, first, last, "+Inf"), name


async def test_cache_config_has_its_size(http: httpx.AsyncClient) -> None:
    family = next(
        family
        for family in text_string_to_metric_families((await http.get("/metrics")).text)
        if family.name == "vllm:cache_config_info"
    )
    labels = family.samples[0].labels
    assert {"block_size", "num_gpu_blocks", "engine", "hash_block_size", "kv_cache_size_tokens"} <= set(labels)
    assert (labels["block_size"], labels["engine"]) == ("128", "0")


async def test_the_label_is_the_served_name(http: httpx.AsyncClient) -> None:
    page = (await http.get("/metrics")).text
    assert f'model_name="{MODEL}"' in page


async def test_counters_match_usage_of_answers(http: httpx.AsyncClient, client: EngineClient) -> None:
    before = await client.metrics()
    usage = (await http.post("/v1/chat/completions", json=chat(max_tokens=4))).json()["usage"]
    after = await client.metrics()
    assert after.prompt_tokens_total - before.prompt_tokens_total == usage["prompt_tokens"]
    assert after.generation_tokens_total - before.generation_tokens_total == usage["completion_tokens"]
    assert after.prefix_queries_tokens_total - before.prefix_queries_tokens_total == usage["prompt_tokens"]
    assert after.inter_tokens_total - before.inter_tokens_total == usage["completion_tokens"] - 1
    assert after.iterations_total - before.iterations_total >= 4
    assert (after.running, after.waiting) == (0, 0)
