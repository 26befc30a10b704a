"""Small rules of the kinds: when keys end, how long a context is, which patterns a tenant may have."""

from datetime import UTC, datetime

import pytest

from functions.api.kinds.inference_service import (
    InferenceService,
    last_argument,
    max_adapters,
    max_lora_rank,
    parse_tokens,
)
from functions.api.kinds.quantities import expiry_unix_s
from functions.api.kinds.tenant import TenantSpec


def test_a_date_lasts_until_its_day_is_over() -> None:
    assert expiry_unix_s("2027-06-30") == datetime(2027, 7, 1, tzinfo=UTC).timestamp()


def test_a_moment_ends_at_that_moment_wherever_it_is_written() -> None:
    moment = datetime(2027, 6, 30, 18, tzinfo=UTC).timestamp()
    assert expiry_unix_s("2027-06-30T18:00:00Z") == moment
    assert expiry_unix_s("2027-06-30T20:00:00+02:00") == moment
    assert expiry_unix_s("2027-06-30T18:00:00.5Z") == moment + 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2027-6-30",
        "2027-13-01",
        "2027-02-30",
        "20270630",
        "2027-06-30T18:00:00",
        "2027-06-30 18:00:00Z",
        "2027-06-30T25:00:00Z",
        "2027-06-30T18:00:00+99:00",
        "9999-12-31",
        "2027-06-30\n",
        "1751299200",
    ],
)
def test_any_other_expiry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a date such as 2027-06-30, or RFC 3339"):
        expiry_unix_s(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("2048", 2048),
        ("32k", 32_000),
        ("32K", 32_768),
        ("25.6k", 25_600),
        ("1m", 1_000_000),
        ("1M", 1_048_576),
        ("0", None),
        ("-1", None),
        ("auto", None),
        ("", None),
        ("1.5", None),
        ("1.5K", None),
        ("2.0005k", None),
        ("1 k", None),
    ],
)
def test_context_windows_are_read_as_vllm_reads_them(text: str, tokens: int | None) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    ("args", "value"),
    [
        (("--max-model-len=1", "--max-model-len=2"), "2"),
        (("--max-model-len", "3"), "3"),
        (("--max_model_len=4",), "4"),
        (("--max-model-len",), None),
        (("--max-model-length=5",), None),
        ((), None),
    ],
)
def test_the_last_of_several_arguments_counts(args: tuple[str, ...], value: str | None) -> None:
    assert last_argument(args, "--max-model-len") == value


def service(bounds: str) -> InferenceService:
    return InferenceService.model_validate_json(
        '{"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "x"},'
        f' "spec": {{"predictor": {{{bounds}}}}}}}'
    )


def test_replica_bounds_are_kserves() -> None:
    assert service("").replica_bounds == (1, 1)
    assert service('"minReplicas": 3').replica_bounds == (3, 3)
    assert service('"minReplicas": 0, "maxReplicas": 2').replica_bounds == (0, 2)
    assert service('"minReplicas": 1, "maxReplicas": 0').replica_bounds == (1, 100_000)


@pytest.mark.parametrize("pattern", ["*", "acme/*", "acme/sup*", "acme/bot", "smollm2-135m", "smol*"])
def test_patterns_that_a_tenant_may_have(pattern: str) -> None:
    spec = TenantSpec.model_validate_json(f'{{"tier": "t", "models": ["{pattern}"]}}')
    assert spec.models == (pattern,)


@pytest.mark.parametrize(
    "pattern", ["", "/*", "*/bot", "a*b", "acme/**", "a/b/*", "Acme/*", "acme/bot?", "acme/bot:v1", "[a]*"]
)
def test_patterns_that_no_tenant_may_have(pattern: str) -> None:
    with pytest.raises(ValueError, match="a model id, or a prefix of ids"):
        TenantSpec.model_validate_json(f'{{"tier": "t", "models": ["{pattern}"]}}')


@pytest.mark.parametrize(
    ("args", "adapters", "rank"),
    [
        (("--max-cpu-loras=8",), 8, None),
        (("--enable-lora", "--max-loras", "4"), 4, 16),
        (("--enable-lora", "--max-cpu-loras=32", "--max-loras=4", "--max-lora-rank=64"), 32, 64),
        (("--enable_lora", "--max_lora_rank", "32"), 1, 32),
        (("--enable-lora", "--max-cpu-loras=many", "--max-lora-rank=0"), 1, 16),
        (("--enable-lora", "--max-cpu-loras=99999999"), 1, 16),
        (("--max-model-len=2048",), None, None),
    ],
)
def test_adapters_follow_the_engines_cache(args: tuple[str, ...], adapters: int | None, rank: int | None) -> None:
    assert (max_adapters(args), max_lora_rank(args)) == (adapters, rank)
