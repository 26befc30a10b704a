"""`shoal capacity` on the configuration of this repository, and on invalid input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from functions.cli.capacity_comparison import PrefillComparison
from functions.cli.capacity_options import by_name, nodes_from, positive_numbers, products_from
from functions.cli.main import app
from functions.cli.refused import CommandRefused
from functions.simulator.prefill_sizing import Apart
from functions.simulator.replicas_needed import Needed

PROJECT = Path(__file__).parents[2]
FLEET = str(PROJECT / "inferenceservices" / "fleet")


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["capacity", *args])


def refused(*args: str) -> str:
    result = run(*args)
    assert isinstance(result.exception, CommandRefused), result.output
    return str(result.exception)


def test_every_pool_has_its_memory() -> None:
    result = run(str(PROJECT / "inferenceservices"), "-o", "json")
    assert result.exit_code == 0
    pools = {each["pool"]: each for each in json.loads(result.stdout)["pools"]}
    assert pools.keys() == {
        "bge-m3", "llama-3-70b", "llama-3-8b", "llama-3-8b-spot", "qwen3-32b", "qwen3-32b-prefill", "smollm2-135m",
    }  # fmt: skip
    assert pools["smollm2-135m"]["memory"]["kv_tokens"] == 23_296
    assert 8 < pools["llama-3-70b"]["concurrency_at_context"] < 14


def test_a_load_says_replicas_and_cost() -> None:
    args = (FLEET, "--pool", "llama-3-8b", "--load", "2", "--price", "1.0", "--api-price", "0.5")
    result = run(*args, "-o", "json")
    assert result.exit_code == 0
    (pool,) = json.loads(result.stdout)["pools"]
    needed = pool["needed"]
    assert needed["replicas"] >= 1
    assert needed["ttft_p99_ms"] <= 1500
    price = needed["replicas"] * 1.0
    assert pool["cost_per_million_tokens"] == pytest.approx(price / (needed["tokens_per_s"] * 3600) * 1e6)
    assert pool["break_even_tokens_per_s"] == pytest.approx(price / 0.5 * 1e6 / 3600)
    shown = run(*args).stdout
    assert "2/s of 1000+200" in shown
    assert "1 x NVIDIA-L40S" in shown


PREFILL = ("--pool", "qwen3-32b", "--pool", "qwen3-32b-prefill")


@pytest.mark.soak
def test_a_prefill_pool_is_sized_with_its_pool_and_told_to_pay() -> None:
    """With long prompts and short token gaps, a single pool needs more accelerators for the same promise."""
    load = ("--load", "2", "--prompt-tokens", "6000", "--ttft-slo", "20s", "--itl-slo", "60ms", "--price", "2")
    result = run(
        FLEET, *PREFILL, *load, "--nodes", "1x8xNVIDIA-H200", "--nodes", "1x8xNVIDIA-H100-80GB-HBM3", "-o", "json"
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    decode, prefill = told["pools"]
    apart = decode["prefill_apart"]
    assert apart["pays"] and apart["unit"] == "an hour"
    sizes = apart["needed"]["reading"], apart["needed"]["writing"]
    assert apart["cost"] == 2.0 * sum(sizes) < apart["one_pool_cost"] == 2.0 * decode["needed"]["replicas"]
    assert apart["needed"]["itl_p99_ms"] <= 60
    placed = [name for node in told["packing"]["nodes"] for name in node["placed"]]
    assert (placed.count("qwen3-32b-prefill"), placed.count("qwen3-32b")) == sizes
    assert prefill["needed"] is None
    shown = run(FLEET, *PREFILL, *load).stdout
    assert f"prefill apart pays: {sizes[0]} of qwen3-32b-prefill and {sizes[1]} of qwen3-32b" in shown


def test_a_prefill_pool_has_no_load_of_its_own() -> None:
    assert "answers no requests: use --load qwen3-32b=" in refused(FLEET, *PREFILL, "--load", "qwen3-32b-prefill=2")


def compared(*, one: int | None, reading: int, writing: int, gap_ms: float = 9.0, **costs: float) -> PrefillComparison:
    needed = (
        Needed(replicas=one, ttft_p99_ms=1.0, itl_p99_ms=75.0, tokens_per_s=1.0, simulated_replicas=1) if one else None
    )
    apart = Apart(
        reading=reading, writing=writing, ttft_p99_ms=1.0, itl_p99_ms=gap_ms, tokens_per_s=1.0, split_ratio=0.9,
        simulated_replicas=1,
    )  # fmt: skip
    sizes: dict[str, float | None] = {"cost": float(reading + writing), "one_cost": float(one) if one else None}
    return PrefillComparison(pool="m", reads="m-prefill", apart=apart, one=needed, **(sizes | costs))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "pays", "words"),
    [
        (compared(one=6, reading=2, writing=1), True, "2 of m-prefill and 1 of m, 3 accelerators; one pool of 6"),
        (compared(one=2, reading=2, writing=1), False, "apart does not pay"),
        (compared(one=3, reading=2, writing=1), False, "costs the same, with gaps of 9 ms in place of 75"),
        (compared(one=3, reading=2, writing=1, gap_ms=80.0), False, "apart does not pay"),
        (compared(one=None, reading=2, writing=1), True, "keep the promise, which one pool cannot"),
        (compared(one=2, reading=2, writing=1, cost=4.0, one_cost=5.0), True, "apart pays"),
        (
            PrefillComparison(pool="m", reads="r", apart=None, one=None, trouble="too slow"),
            False, "does not pay: too slow",
        ),
    ],
)  # fmt: skip
def test_what_is_worth_it_is_said(found: PrefillComparison, pays: bool, words: str) -> None:
    assert found.pays == pays and words in found.words


def test_no_place_and_no_room_are_exit_one() -> None:
    crowded = run(FLEET, "--pool", "llama-3-8b", "--nodes", "1x2xNVIDIA-L40S")
    assert crowded.exit_code == 1
    assert "no place for 2 of llama-3-8b" in crowded.stdout
    small = run(FLEET, "--pool", "llama-3-70b", "--accelerator", "NVIDIA-L4")
    assert small.exit_code == 1
    assert "does not fit" in small.stdout


def test_unknown_model_is_read_from_its_folder(tmp_path: Path) -> None:
    service = (PROJECT / "inferenceservices" / "fleet" / "llama-3-8b-lora.yaml").read_text()
    file = tmp_path / "own.yaml"
    file.write_text(service.replace("llama-3.1-8b-instruct", "our-own"))
    assert "--model-dir" in refused(str(file))
    config = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 8, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 4096}))
    result = run(str(file), "--model-dir", str(tmp_path), "-o", "json")
    assert json.loads(result.stdout)["pools"][0]["parameters"] < 2e8
    (tmp_path / "config.json").write_text("[]")
    assert "not a JSON object" in refused(str(file), "--model-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--pool", "nobody"), "no pool of that name"),
        (("--load", "5"), "--load needs a pool"),
        (("--load", "nobody=5"), "'nobody'"),
        (("--load", "llama-3-8b=-1"), "not a number above 0"),
        (("--load", "llama-3-8b=nan"), "not a number above 0"),
        (("--ttft-slo", "1.5"), "--ttft-slo"),
        (("--nodes", "8xH100"), "COUNTxACCELERATORSxPRODUCT"),
        (("--nodes", "999999x8xH100"), "at most 100000 nodes"),
        (("--accelerator", "H100"), "Describe another"),
        (("--load", "bge-m3=5"), "the speed of bge-m3 cannot be estimated"),
    ],
)
def test_what_is_asked_wrongly_is_told(args: tuple[str, ...], why: str) -> None:
    assert why in refused(FLEET, *args)


def test_a_folder_without_services_is_told(tmp_path: Path) -> None:
    assert "there is no pool" in refused(str(tmp_path))


def test_options_of_names_and_values() -> None:
    assert by_name(["a=1", "2"], "--x") == {"a": "1", "": "2"}
    assert positive_numbers(["a=1.5"], "--x") == {"a": 1.5}
    assert products_from(["MI=1:2:3:4", "p=NVIDIA-L4"]) == {"": "MI=1:2:3:4", "p": "NVIDIA-L4"}
    assert products_from(["p=MI=1:2:3:4"]) == {"p": "MI=1:2:3:4"}
    assert [node.accelerators for node in nodes_from("2x8xX")] == [8, 8]
    for texts in (["a=1", "a=2"], ["a="]):
        with pytest.raises(CommandRefused):
            by_name(texts, "--x")
