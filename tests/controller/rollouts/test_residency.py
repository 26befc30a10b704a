"""Where a rollout's two versions are, by what replicas say."""

from functions.controller.rollouts.driver import residency_of
from functions.decisions.rollout.evaluation import Residency
from functions.fleet.heartbeat import Heartbeat
from tests.decisions.rollout.rollouts import POOL, digest, rollout
from tests.fleet.builders import beat

BOT = "acme/bot@sha256:" + "a" * 64
OTHER = "acme/other@sha256:" + "b" * 64


def replica(version: str, *adapters: str, **failures: str) -> Heartbeat:
    reasons = {BOT if name == "bot" else OTHER: reason for name, reason in failures.items()}
    return beat(pool=POOL, weights_digest=digest(version), adapters=adapters, adapter_failures=reasons)


def residency(*replicas: Heartbeat) -> Residency:
    return residency_of(rollout(model=POOL), replicas)


def test_a_bases_versions_are_counted_by_the_weights_that_replicas_tell() -> None:
    where = residency(replica("v1"), replica("v1"), replica("v2"), replica("v3"))
    assert (where.ready, where.with_control, where.with_candidate, where.refusing) == (4, 2, 1, 0)


def test_an_adapter_that_only_the_new_base_cannot_load_is_told_with_its_reason() -> None:
    old = replica("v1", BOT)
    where = residency(old, replica("v2", other="no such store", bot="its rank 64 is over 16"), replica("v2", BOT))
    assert (where.refusing, where.refusal) == (1, f"{BOT}: its rank 64 is over 16")
    assert residency(old, replica("v2", other="no such store")).refusing == 0, "the old one has not loaded it either"
    assert residency(replica("v1", BOT, bot="later"), replica("v2", BOT)).refusing == 0
