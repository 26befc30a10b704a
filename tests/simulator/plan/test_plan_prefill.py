"""Prefill pools in a plan: which prompts they prefill, and the effect on gaps, first tokens and cost."""

import pytest

from functions.api.ids import PoolName, TenantId
from functions.controller.gitops.changes import compiled
from functions.simulator.plan.declarations import declarations_of
from functions.simulator.plan.entry import Entry
from functions.simulator.plan.experiment import Played, play
from functions.simulator.plan.figures import Key
from functions.simulator.plan.planned_fleet import PlannedFleet, fleet_of
from functions.simulator.plan.settings import Beginning, setting_of
from functions.simulator.plan.traffic import PlanTraffic
from functions.simulator.plan.unsimulated import unsimulated
from functions.simulator.workload.request import WorkloadRequest
from tests.controller.configs import load, tier
from tests.simulator.plan.configs import pool, prefill_policy, tenant

ACME = TenantId("acme")
READER = pool("m-prefill", model="m", reads_gigabits_per_s=100, replicas=2)


class Steady(PlanTraffic):
    """Equal requests at even gaps, so that only the arrangement differs."""

    def requests(self, window: int):  # type: ignore[no-untyped-def]
        return (WorkloadRequest(0.5 * (at + 1), ACME, self.count, 150, pool="m") for at in range(self.total))


def steady(prompt_tokens: int, requests: int = 60) -> PlanTraffic:
    return Steady("foreign", "steady", 64, 1, 0.5 * requests, count=prompt_tokens, total=requests)


def planned(*documents: str) -> PlannedFleet:
    loaded = load(*documents, tier("standard"), tenant("acme", "standard"))
    return fleet_of(compiled(loaded, {}), declarations_of(loaded))


def played(before: PlannedFleet, after: PlannedFleet, prompt_tokens: int = 4096) -> Played:
    return play(before, after, steady(prompt_tokens), lambda words: None)


def read_ratio(found: Played) -> float | None:
    each = found.compared.get(Key("m", "", "prefilled_ratio"))
    return each.after if each is not None else None


def test_prefill_pool_of_half_the_replicas_steadies_streams() -> None:
    found = played(planned(pool("m", replicas=4)), planned(pool("m", replicas=2), READER, prefill_policy(256)))
    assert (read_ratio(found) or 0.0) > 0.8
    gaps = found.compared[Key("m", "", "gap_p99_ms")]
    assert (gaps.after or 1e9) * 2 < (gaps.before or 0.0)
    assert (found.compared[Key("m-prefill", "", "busy_ratio")].after or 0.0) > 0.1
    hours = found.compared[Key("m", "", "model_accelerator_hours")]
    assert hours.before == pytest.approx(hours.after), "the readers cost as well"
    assert not any(key.pool == "m-prefill" and key.band for key in found.compared), "it answers nothing"
    assert not any(key.figure == "here_ratio" for key in found.compared), "one pool alone answers"


@pytest.mark.parametrize(
    ("least", "gigabits_per_s", "prompt_tokens", "reads"),
    [(256, 100, 4096, True), (8000, 100, 4096, False), (256, 100, 200, False), (256, 0.1, 4096, False)],
)
def test_policy_prompt_and_link_decide_where_prefill_runs(
    least: int, gigabits_per_s: float, prompt_tokens: int, reads: bool
) -> None:
    reader = pool("m-prefill", model="m", reads_gigabits_per_s=gigabits_per_s, replicas=2)
    fleet = planned(pool("m", replicas=2), reader, prefill_policy(least))
    ratio = read_ratio(played(fleet, fleet, prompt_tokens)) or 0.0
    assert ratio > 0.5 if reads else ratio == 0.0


def test_prefill_pool_receives_no_client_requests() -> None:
    fleet = planned(pool("m"), READER, prefill_policy(256))
    entry = Entry(fleet, is_own=False)
    assert list(entry.entering([WorkloadRequest(0.0, ACME, 4096, 10, pool="m-prefill")])) == []
    assert entry.no_pool["m-prefill", 0] == 1
    assert [each.name for each in fleet.answering] == ["m"]


def test_initial_prefill_replicas_follow_the_longer_prompts() -> None:
    scaled = """\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: m-prefill}
spec: {pool: m-prefill, replicas: {min: 1, max: 9}}
"""
    reader = pool("m-prefill", model="m", reads_gigabits_per_s=100, replicas=9)
    fleet = planned(pool("m"), reader, prefill_policy(2048), scaled)

    def begins(prompt_tokens: int) -> int:
        rows = [WorkloadRequest(at / 4, ACME, prompt_tokens, 10, pool="m") for at in range(41)]
        setting = setting_of(fleet, steady(prompt_tokens), Beginning.of(rows), 0)
        return next(each.replicas for each in setting.pools if each.name == PoolName("m-prefill"))

    assert begins(4096) == 5  # 4.1 a second of 4,096 tokens at 0.2 ms: 3.4 s of work a second, at 75 %
    assert begins(2000) == 1


class Growing(Steady):
    """A prompt every 5 s, which the answering pool prefills as fast itself; from 100 s on two a second."""

    def requests(self, window: int):  # type: ignore[no-untyped-def]
        times_s = [*range(5, 105, 5), *(100 + 0.5 * (at + 1) for at in range(self.total - 20))]
        return (WorkloadRequest(float(at_s), ACME, self.count, 150, pool="m") for at_s in times_s)


@pytest.mark.parametrize("least", [1, 0])
def test_prefill_pool_grows_with_waiting_prompts(least: int) -> None:
    """An earlier version kept one replica however many prompts it turned away, or none after scaling to zero."""
    scaled = f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: m-prefill}}
spec:
  pool: m-prefill
  replicas: {{min: {least}, max: 3}}
  idleAfter: 30s
  scaleUp: ["utilization > 75% for 30s: +1"]
"""
    reader = pool("m-prefill", model="m", reads_gigabits_per_s=100, replicas=3)
    fleet = planned(pool("m", replicas=4), reader, prefill_policy(256), scaled)
    traffic = Growing("foreign", "growing", 64, 1, 320.0, count=4096, total=460, start="disk")
    found = play(fleet, fleet, traffic, lambda words: None)
    ready = {round(point.at_s): point.ready for point in found.after.timeline.points[PoolName("m-prefill")]}
    calm = [count for at_s, count in ready.items() if 60 < at_s < 100]
    assert set(calm) == {least} and max(ready.values()) >= 2
    assert (read_ratio(found) or 0.0) > 0.5


def test_prefill_pool_is_not_reported_as_unsimulated() -> None:
    added = (pool("m"), READER, prefill_policy(9))
    was, is_ = (load(*documents, tier("standard")) for documents in ((pool("m"),), added))
    found = unsimulated(compiled(was, {}), compiled(is_, {}), declarations_of(was), declarations_of(is_))
    assert found == ()
