"""Fetched weights on one machine: a fetcher for each version that replicas start from, before its engines."""

from dataclasses import replace
from pathlib import Path

import pytest

from functions.artifacts.locations import WeightsName, weights_at
from functions.controller.local.plan import plan_fleet
from functions.controller.local.plan_weights import fetcher_of
from functions.controller.local.pools import Pool, Target, folder_at
from functions.controller.local.probes import ProcessProber
from functions.controller.local.spec import STOP_ORDER, PathProbe
from functions.replica.node_fetch.wanted import Wanted, parse_wanted
from tests.controller.test_plan import CONTEXT

POOL = Pool("llama", replicas=2, model="llama@v1")


def test_engines_wait_for_the_fetcher_of_their_version() -> None:
    plan = plan_fleet(CONTEXT, [replace(POOL, folders=("llama@v1", "llama@v2"))], Target("sim"), {})
    assert plan["engine-llama-0"].after == ("weights-llama@v1",)
    assert plan["engine-llama-1"].after == ("weights-llama@v2",)
    models = CONTEXT.models_root
    assert plan["engine-llama-1"].argv[plan["engine-llama-1"].argv.index("--model") + 1] == str(models / "llama@v2")
    fetcher = plan["weights-llama@v2"]
    assert parse_wanted(fetcher.argv[3:]) == [Wanted(WeightsName("llama", "v2"), models / "llama@v2")]
    assert fetcher.readiness == PathProbe(models / "llama@v2")
    assert STOP_ORDER.index("engine") < STOP_ORDER.index("weights") < STOP_ORDER.index("registry")


def test_one_fetcher_serves_all_replicas_and_local_folders_need_none() -> None:
    pools = [POOL, replace(POOL, name="other"), Pool("smollm2", replicas=1, model="smollm2")]
    plan = plan_fleet(CONTEXT, pools, Target("sim"), {})
    assert [name for name in plan if name.startswith("weights-")] == ["weights-llama@v1"]
    assert plan["engine-smollm2-0"].after == ()
    assert fetcher_of("smollm2") is None


@pytest.mark.parametrize(
    ("uri", "folder"),
    [
        ("shoal://llama@v1", "llama@v1"),
        ("s3://shoal-models/bases/llama/v1", "llama@v1"),
        ("pvc://shoal-models/llama", "llama"),
        ("pvc://shoal-models/a/b", None),
        ("pvc://elsewhere/llama", None),
        ("s3://shoal-models/acme/bot/v1", None),
        ("s3://shoal-models/bases/llama", None),
        ("shoal://llama", None),
        ("shoal://../x@v1", None),
        ("", None),
    ],
)
def test_folder_of_a_uri_below_the_models_directory(uri: str, folder: str | None) -> None:
    """A version's artifact and a pool's storageUri mean one folder, so that a rollout finds the first weights."""
    assert folder_at(uri) == folder
    assert weights_at(uri) == (WeightsName("llama", "v1") if folder == "llama@v1" else None)


async def test_dangling_link_is_not_ready(tmp_path: Path) -> None:
    """The cache's artifact was deleted by hand: engines must wait for the fetcher again."""
    prober, link = ProcessProber(), tmp_path / "llama@v1"
    link.symlink_to(tmp_path / "sha256")
    assert not (await prober.probe(PathProbe(link))).ok
    (tmp_path / "sha256").mkdir()
    assert (await prober.probe(PathProbe(link))).ok
