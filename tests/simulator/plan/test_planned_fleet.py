"""A configuration as the simulator uses it: engines from hardware and arguments, policies as a gateway applies them."""

import pytest

from functions.controller.gitops.changes import compiled
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.plan.declarations import PoolDeclaration, declarations_of, engine_changes
from functions.simulator.plan.planned_fleet import PlannedFleet, fleet_of
from functions.simulator.plan.profiles import EngineImpossible, choose_engine
from tests.controller.configs import load, policies, pool, tenant, tier

H100 = "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}"


def service(
    *args: str, name: str = "base", uri: str = "llama-3.1-8b", selector: str = H100, gpus: int = 1, notes: str = "{}"
) -> str:
    resources = f'resources: {{limits: {{nvidia.com/gpu: "{gpus}"}}}}, ' if gpus else ""
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}, labels: {{shoal.dev/pool: {name}}}, annotations: {notes}}}
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 9
    {selector}
    model:
      {{modelFormat: {{name: vLLM}}, storageUri: "pvc://models/{uri}", {resources}
       args: [{", ".join(("--max-model-len=8192", *args))}]}}
"""


def declared(*documents: str) -> PoolDeclaration:
    return declarations_of(load(*documents))[0]


def planned(*documents: str) -> PlannedFleet:
    loaded = load(*documents)
    return fleet_of(compiled(loaded, {}), declarations_of(loaded))


def test_an_engine_from_hardware_and_arguments() -> None:
    found = choose_engine(declared(service("--max-num-seqs=128")))
    assert found.profile.step_ms == pytest.approx(8.3, abs=0.1)
    assert found.profile.prefill_ms_per_token == pytest.approx(0.036, abs=0.001)
    assert (found.profile.max_sequences, found.profile.step_budget_tokens) == (128, 8192)
    assert (found.is_assumed, found.accelerators) == (True, 1)
    assert "llama" in found.words
    assert "H100-80GB-HBM3" in found.words


def test_arguments_change_the_engine() -> None:
    usual = choose_engine(declared(service())).profile
    less = choose_engine(declared(service("--gpu-memory-utilization=0.5", "--max-num-batched-tokens=512"))).profile
    assert less.kv_tokens < usual.kv_tokens / 2
    assert less.step_budget_tokens == 512
    assert choose_engine(declared(service("--kv-cache-dtype=fp8"))).profile.kv_tokens > 1.9 * usual.kv_tokens
    split = choose_engine(declared(service("--tensor-parallel-size=4", gpus=4)))
    assert split.profile.step_ms < usual.step_ms
    assert (split.accelerators, split.profile.price_per_hour) == (4, 4.0)


def test_an_engine_is_named_by_its_annotation() -> None:
    notes = '{shoal.dev/simulator-profile: a100-8b, shoal.dev/accelerator-price-per-hour: "2.5"}'
    found = choose_engine(declared(service("--max-num-seqs=64", uri="nobody-knows-it", notes=notes)))
    assert found.profile.step_ms == PROFILES["a100-8b"].step_ms
    assert found.profile.max_sequences == 64
    assert (found.profile.price_per_hour, found.price_is_known, found.is_assumed) == (2.5, True, False)


def test_cpu_engine_uses_the_measured_profile_and_the_configured_cache() -> None:
    text = service(uri="smollm2-135m", selector="", gpus=0)
    usual = choose_engine(declared(text))
    env = 'env: [{name: VLLM_CPU_KVCACHE_SPACE, value: "1"}], modelFormat'
    given = choose_engine(declared(text.replace("modelFormat", env)))
    assert "requests no accelerator" in usual.words
    assert 20_000 < given.profile.kv_tokens < 50_000  # 1 GiB of 30 layers x 3 heads x 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (service(uri="nobody-knows-it"), "shoal.dev/architecture"),
        (service(notes="{shoal.dev/simulator-profile: tpu}"), "allowed: h100-8b"),
        (service("--max-num-batched-tokens=64", "--max-num-seqs=128"), "vLLM does not start"),
        (service(uri="llama-3.3-70b"), "does not fit"),
        (service(selector="nodeSelector: {nvidia.com/gpu.product: NVIDIA-X1}"), "no accelerator is called"),
    ],
)
def test_impossible_engine_is_refused_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(EngineImpossible, match=said) as told:
        choose_engine(declared(text))
    assert "pool base" in str(told.value)


def test_pool_uses_its_most_specific_policies() -> None:
    other, scaled = service(name="other"), policies().replace("max: 1}", "max: 3}")
    found = planned(tier(), tenant("acme"), service(), other, scaled)
    first, second = found.pools
    assert (first.name, first.routing.name, first.least, first.most, first.warm) == ("base", "llamas", 1, 3, 1)
    assert first.routing.fallback[0].target_pool == "other"
    assert (second.least, second.most, second.autoscaling) == (2, 2, None)
    assert (first.promised_ms("interactive"), first.promised_ms("batch")) == (500.0, None)
    assert found.tenants == {"acme": found.tenants["acme"]}
    assert found.pool("nobody") is None


def test_embedding_pool_is_not_simulated() -> None:
    text = service(name="vectors", uri="bge-m3").replace("shoal.dev/pool", "shoal.dev/task: embed, shoal.dev/pool")
    found = planned(tier(), service(), text)
    assert [each.name for each in found.pools] == ["base", "vectors"]
    assert [each.name for each in found.generating] == ["base"]


def test_engine_changes_are_listed() -> None:
    was = declarations_of(load(service("--max-num-seqs=128", "--enable-lora")))
    is_ = declarations_of(load(service("--max-num-seqs", "'64'")))
    assert list(engine_changes(was, is_)) == [
        "pool base: --enable-lora on -> unset",
        "pool base: --max-num-seqs 128 -> 64",
    ]
    assert not list(engine_changes(was, was))
    assert not list(engine_changes((), is_))


def test_pool_without_a_known_model_needs_an_architecture() -> None:
    with pytest.raises(EngineImpossible, match="architecture"):
        planned(tier(), pool())
