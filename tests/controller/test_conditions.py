"""Each object's condition, and the reason if it is not ready."""

from dataclasses import replace

import msgspec
import pytest

from functions.api.ids import INCOMING, Digest
from functions.api.loader import Loaded
from functions.controller.conditions import SHOWN_PER_KIND, ObjectCondition, ObservedState, conditions
from functions.controller.snapshot.compile import compile_snapshot
from functions.decisions.rollout.events import Breached, VersionLoaded
from functions.decisions.rollout.lifecycle import Rollout
from functions.fleet.heartbeat import Heartbeat
from tests.controller.configs import base, load, lora, pool, tenant
from tests.decisions.rollout.rollouts import rollout, running

DIGEST = Digest("sha256:" + "1" * 64)
URIS = {"s3://shoal-models/acme/bot/v1": DIGEST, "pvc://shoal-models/base": DIGEST}
CONFIG = load(pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1"))


def seen(
    loaded: Loaded = CONFIG,
    *heartbeats: Heartbeat,
    current: bool = True,
    held: tuple[str, ...] = (),
    rollouts: tuple[Rollout, ...] = (),
) -> ObservedState:
    compiled = compile_snapshot(loaded.objects, URIS, epoch=1, revision="r", compiled_unix_s=0.0)
    problems = tuple(str(problem) for problem in compiled.problems)
    return ObservedState(compiled.snapshot, current, problems, held, rollouts, heartbeats, now_unix_s=1e9)


def coming(what: ObservedState) -> ObservedState:
    """Return the state while the held channel is missing and its new version is loading."""
    models = tuple(
        msgspec.structs.replace(model, channels={INCOMING: "v1"}) if model.id == "acme/bot" else model
        for model in what.snapshot.models
    )
    return replace(what, snapshot=msgspec.structs.replace(what.snapshot, models=models))


def heartbeat(name: str, *adapters: str, phase: str = "ready", reason: str = "") -> Heartbeat:
    return Heartbeat(
        replica_id=name, pool="base", host="h", port=1, phase=phase, sequence=0, incarnation=0, sent_unix_s=0.0,  # type: ignore[arg-type]
        adapters=adapters, reason=reason,
    )  # fmt: skip


BOT = "acme/bot@" + "sha256:" + "1" * 16


def of(
    name: str, what: ObservedState, loaded: Loaded = CONFIG, pools: tuple[ObjectCondition, ...] = ()
) -> tuple[str, str, str]:
    found = {each.name: each for each in conditions(loaded, pools, what).listed}
    return found[name].state, found[name].reason, found[name].message


@pytest.mark.parametrize(
    ("heartbeats", "expected"),
    [
        ((heartbeat("a", BOT), heartbeat("b", BOT)), ("Ready", "Loaded", "v1 loaded on 2 of 2 replicas")),
        ((heartbeat("a", BOT), heartbeat("b")), ("Reconciling", "Loading", "v1 loaded on 1 of 2 replicas")),
        (
            (heartbeat("a", reason=f"{BOT}: checksum differs (failed 3 times)"),),
            ("Reconciling", "NotLoaded", f"v1 loaded on 0 of 1 replicas: {BOT}: checksum differs (failed 3 times)"),
        ),
        ((heartbeat("a", BOT, phase="draining"),), ("Reconciling", "NoReplica", "no replica of pool base is ready")),
    ],
)
def test_adapter_is_ready_once_every_replica_has_it(
    heartbeats: tuple[Heartbeat, ...], expected: tuple[str, str, str]
) -> None:
    assert of("acme/bot", seen(CONFIG, *heartbeats)) == expected


def test_base_with_other_loaded_weights_is_stalled() -> None:
    """The volume was overwritten and some pods have restarted since; without the digest, no one could tell which."""
    here, other = (
        msgspec.structs.replace(heartbeat("a"), weights_digest=each) for each in (DIGEST, "sha256:" + "9" * 64)
    )
    state, reason, words = of("base", seen(CONFIG, here, other, heartbeat("c")))
    assert (state, reason) == ("Stalled", "OtherWeights")
    assert words.startswith("1 of 3 replicas have loaded weights that no version declares: sha256:999")
    assert of("base", seen(CONFIG, here, heartbeat("c"))) == ("Ready", "Served", "on 2 replicas")


def test_a_base_is_ready_with_its_replicas() -> None:
    assert of("base", seen(CONFIG, heartbeat("a"), heartbeat("b"))) == ("Ready", "Served", "on 2 replicas")


def test_unpublished_object_is_reconciling() -> None:
    assert of("acme/bot", seen(CONFIG, heartbeat("a", BOT), current=False))[:2] == ("Reconciling", "NotPublished")
    assert of("acme", seen(CONFIG, current=False))[:2] == ("Reconciling", "NotPublished")


def test_missing_artifact_stalls_its_model_with_the_location() -> None:
    loaded = load(pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1", "v9"))
    state, reason, message = of("acme/bot", seen(loaded, heartbeat("a", BOT)), loaded)
    assert (state, reason) == ("Stalled", "LeftOut")
    assert "acme/bot@v9 is left out: nothing is published at s3://shoal-models/acme/bot/v9" in message


def test_held_channel_with_an_unloadable_version_has_the_reason() -> None:
    held, why = ("acme/bot:stable stays v0 until v1 is loaded",), f"{BOT}: rank 64 is too large (failed 4 times)"
    assert of("acme/bot", coming(seen(CONFIG, heartbeat("a", reason=why), held=held))) == (
        "Stalled",
        "NotLoadable",
        f"{held[0]}: {why}",
    )
    assert of("acme/bot", coming(seen(CONFIG, heartbeat("a"), held=held))) == ("Reconciling", "Loading", held[0])


def test_held_channel_is_shown_as_loading() -> None:
    held = ("acme/bot:stable stays v0 until v1 is loaded",)
    assert of("acme/bot", seen(CONFIG, heartbeat("a", BOT), held=held)) == ("Reconciling", "Loading", held[0])


def test_tenants_without_valid_keys_are_listed_and_others_counted() -> None:
    loaded = load(
        pool(), tenant("acme", "ci"), tenant("keyless"), tenant("late", "old", extra=', expires: "2001-01-01"'), base()
    )
    found = conditions(loaded, (), seen(loaded))
    tenants = {each.name: each.reason for each in found.listed if each.kind == "Tenant"}
    assert tenants == {"keyless": "NoKey", "late": "KeysExpired"}
    assert found.counts["Tenant"] == {"Ready": 1, "Reconciling": 0, "Stalled": 2}


def test_thousands_of_objects_are_counted_and_problems_come_first() -> None:
    loaded = load(*(tenant(f"t{number}") for number in range(SHOWN_PER_KIND + 50)))
    found = conditions(loaded, (), seen(loaded))
    assert found.counts["Tenant"]["Stalled"] == SHOWN_PER_KIND + 50
    assert len([each for each in found.listed if each.kind == "Tenant"]) == SHOWN_PER_KIND


def test_conditions_include_findings_of_the_target() -> None:
    pools = (ObjectCondition("InferenceService", "base", "Stalled", "Failing", "it died 3 times"),)
    assert of("base", seen(load(pool())), load(pool()), pools) == ("Stalled", "Failing", "it died 3 times")


def test_model_in_a_rollout_is_reconciling_and_a_rolled_back_one_is_stalled() -> None:
    ready = heartbeat("a", BOT)
    words = "acme/bot:stable goes from v1 to v2, stage 1 of 4 (1%)"
    assert of("acme/bot", seen(CONFIG, ready, rollouts=(running(),))) == ("Reconciling", "RollingOut", words)
    back = rollout(VersionLoaded(), Breached("error_rate > 2%: 9%"))
    halted = ("Stalled", "RolloutHalted", "acme/bot:stable stays v1: error_rate > 2%: 9%")
    assert of("acme/bot", seen(CONFIG, ready, rollouts=(back,))) == halted
    assert of("acme/bot", seen(CONFIG, ready, rollouts=(running(model="acme/other"),)))[0] == "Ready"
