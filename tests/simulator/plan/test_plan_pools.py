"""Several pools of one model in a plan: rules and dedicated pools decide which one answers, with figures by pool."""

from pathlib import Path

import pytest

from functions.api.ids import PoolName, TenantId
from functions.controller.gitops.changes import compiled
from functions.simulator.plan.declarations import declarations_of
from functions.simulator.plan.entry import Entry
from functions.simulator.plan.experiment import Played, play
from functions.simulator.plan.figures import Key
from functions.simulator.plan.notes import notes_of
from functions.simulator.plan.pace import Load
from functions.simulator.plan.planned_fleet import PlannedFleet, fleet_of
from functions.simulator.plan.settings import Beginning, setting_of
from functions.simulator.plan.traffic import PlanTraffic, made_up, models_by_pool, recorded
from functions.simulator.workload.request import WorkloadRequest
from functions.telemetry.trace_row import encode
from tests.controller.configs import load, tier
from tests.simulator.plan.configs import pool, routing, tenant
from tests.telemetry.test_traces import row

BATCH = 2
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
POOLS = (pool("m"), pool("m-spot", model="m", spot=True), pool("other"))


def planned(*documents: str, acme: str = "shared") -> PlannedFleet:
    tiers = (tier("standard"), tier("gold"))
    loaded = load(*documents, *tiers, tenant("acme", "gold", acme), tenant("globex", "standard"))
    return fleet_of(compiled(loaded, {}), declarations_of(loaded))


def traffic_for(fleet: PlannedFleet, requests: int = 120, load_ratio: float = 0.1) -> PlanTraffic:
    pools = [each for each in fleet.answering if each.model == "m"]
    load = Load().for_others(load_ratio)
    return made_up(pools, tuple(fleet.tenants), load, windows=1, requests=requests)


def played(before: PlannedFleet, after: PlannedFleet, **wanted: float) -> Played:
    return play(before, after, traffic_for(before, **wanted), lambda words: None)  # type: ignore[arg-type]


def placed(fleet: PlannedFleet, tenant: TenantId, prompt_tokens: int = 500, band: int = 0) -> str:
    return Entry(fleet, is_own=False).place(WorkloadRequest(0.0, tenant, prompt_tokens, 50, band=band, pool="m"))


def test_rule_moves_its_requests_and_figures_show_it_by_pool() -> None:
    found = played(planned(*POOLS), planned(*POOLS, routing("{when: {classes: [batch]}, to: m-spot}")))
    here = {
        (key.pool, key.band): (each.before, each.after)
        for key, each in found.compared.items()
        if key.figure == "here_ratio"
    }
    assert here["m-spot", "batch"] == (0.0, 1.0)
    assert here["m", "batch"] == (1.0, 0.0)
    assert here["m-spot", "interactive"][1] == 0.0
    assert found.compared[Key("m-spot", "batch", "here_ttft_p50_ms")].before is None
    assert (found.compared[Key("m-spot", "", "busy_ratio")].after or 0.0) > 0.0
    assert Key("m-spot", "batch", "ttft_p50_ms") not in found.compared, "nobody can ask for it by its name"
    assert Key("other", "interactive", "here_ratio") not in found.compared, "it is its model's only one"


@pytest.mark.parametrize(
    ("when", "moves", "stays"),
    [
        ("classes: [batch]", {"band": BATCH}, {}),
        ("tiers: [gold]", {"tenant": ACME}, {"tenant": GLOBEX}),
        ("tenants: [globex]", {"tenant": GLOBEX}, {"tenant": ACME}),
        ("minPromptTokens: 1000", {"prompt_tokens": 1000}, {"prompt_tokens": 999}),
        ("maxPromptTokens: 100", {"prompt_tokens": 100}, {"prompt_tokens": 101}),
    ],
)
def test_each_kind_of_rule_decides(when: str, moves: dict[str, object], stays: dict[str, object]) -> None:
    fleet = planned(*POOLS, routing(f"{{when: {{{when}}}, to: m-spot}}"))
    assert placed(fleet, **{"tenant": ACME, **moves}) == "m-spot"  # type: ignore[arg-type]
    assert placed(fleet, **{"tenant": ACME, **stays}) == "m"  # type: ignore[arg-type]


def test_rule_on_predicted_ttft_moves_late_requests() -> None:
    def there(time: str) -> float:
        after = planned(*POOLS, routing(f"{{when: {{minPredictedTtft: {time}}}, to: m-spot}}"))
        found = played(planned(*POOLS), after).compared[Key("m-spot", "interactive", "here_ratio")]
        assert found.before == 0.0
        return found.after or 0.0

    assert there("20s") == 0.0
    assert 0.05 < there("200ms") < 0.95


def test_dedicated_pool_answers_only_its_tenant() -> None:
    own = pool("m-acme", model="m", dedicated_to="acme")
    before, after = planned(*POOLS), planned(*POOLS, own, acme="dedicated")
    assert (placed(after, ACME), placed(after, GLOBEX), placed(before, ACME)) == ("m-acme", "m", "m")
    found = played(before, after)
    asked = [each.tenant for each in traffic_for(before).requests(0)]
    share = asked.count(ACME) / len(asked)
    assert 0.2 < share < 0.8
    foreground = found.compared[Key("m-acme", "interactive", "here_ratio")]
    assert foreground.after == pytest.approx(share, abs=0.1)
    assert (foreground.before, found.compared[Key("m", "interactive", "here_ratio")].before) == (None, 1.0)


def test_preferred_pool_overflows_to_shared_pools_and_a_dedicated_one_refuses() -> None:
    own = pool("m-acme", model="m", dedicated_to="acme", replicas=0)
    preferred, dedicated = (planned(*POOLS, own, acme=use) for use in ("preferred", "dedicated"))
    found = play(preferred, dedicated, traffic_for(planned(*POOLS)), lambda words: None)
    shed = found.compared[Key("m", "interactive", "shed_ratio")]
    assert shed.before == 0.0
    assert 0.2 < (shed.after or 0.0) < 0.8, "what acme asked for"
    assert found.verdict != "same"


def test_generated_requests_match_tenants_of_pools_and_name_the_model() -> None:
    fleet = planned(*POOLS, pool("m-acme", model="m", dedicated_to="acme"), acme="dedicated")
    traffic = traffic_for(fleet)
    assert "a second to m by acme for its pool m-acme" in traffic.words
    assert "a second to m for its pool m-spot" in traffic.words
    rows = list(traffic.requests(0))
    assert {each.pool for each in rows} == {"m"}
    part = sum(each.tenant == ACME for each in rows) / len(rows)
    assert part == pytest.approx(1 / 3, abs=0.12), "one pool of three alike is its"


def test_recorded_row_requests_the_model_of_its_pool(tmp_path: Path) -> None:
    rows = [
        row(f"r{at}", ts=1e9 + at, tenant_id="acme", model_id="m", pool=name, prompt_tokens=9)
        for at, name in enumerate(("m", "m-spot") * 15)
    ]
    (tmp_path / "requests-1.ndjson").write_bytes(b"".join(encode(each) + b"\n" for each in rows))
    before, after = planned(*POOLS), planned(pool("m"), pool("m-spot"), pool("other"))
    traffic = recorded(tmp_path, 1, 100, models_by_pool(before, after))
    assert {each.pool for each in traffic.requests(0)} == {"m"}, "the last row's pool, as far as anybody knows"


def test_initial_replicas_follow_placement_rules() -> None:
    spot = pool("m-spot", model="m", spot=True, replicas=9)
    scaled = """\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: m-spot}
spec: {pool: m-spot, replicas: {min: 1, max: 9}}
"""
    rows = [WorkloadRequest(at / 40, ACME, 2000, 200, band=BATCH, pool="m") for at in range(400)]

    def begins(*rules: str) -> int:
        fleet = planned(pool("m"), spot, pool("other"), scaled, *map(routing, rules))
        beginning = Beginning.of(rows, Entry(fleet, is_own=False).place)
        setting = setting_of(fleet, traffic_for(fleet, requests=20), beginning, 0)
        return next(each.replicas for each in setting.pools if each.name == "m-spot")

    assert begins() == 1
    assert begins("{when: {classes: [batch]}, to: m-spot}") == 9


def test_context_window_is_that_of_the_largest_usable_pool() -> None:
    roomy = pool("m-acme", model="m", dedicated_to="acme", window=16_384)
    entry = Entry(planned(*POOLS, roomy, acme="preferred"), is_own=False)
    rows = [WorkloadRequest(0.0, tenant, 10_000, 50, pool="m") for tenant in (ACME, GLOBEX)]
    assert [each.tenant for each in entry.entering(rows)] == [ACME]
    assert entry.too_long["m", 0] == 1
    assert list(entry.entering([WorkloadRequest(0.0, ACME, 10, 50, pool="m-spot")])) == [], "it is no model's name"


def test_hours_and_cost_are_compared_across_all_pools_of_a_model() -> None:
    """Moving two replicas from one pool to the other is neither a gain nor a loss."""
    before = planned(pool("m", replicas=3), pool("m-spot", model="m", spot=True, replicas=1))
    after = planned(pool("m", replicas=1), pool("m-spot", model="m", spot=True, replicas=3))
    found = played(before, after, load_ratio=0.1, requests=60)
    whole = found.compared[Key("m", "", "model_accelerator_hours")]
    assert whole.before == pytest.approx(whole.after)
    assert found.compared[Key("m", "", "accelerator_hours")].marked == "same"
    assert whole.marked == "same"
    three = played(before, planned(pool("m", replicas=3), pool("m-spot", model="m", spot=True, replicas=3)),
                   load_ratio=0.1, requests=60)  # fmt: skip
    assert three.compared[Key("m", "", "model_accelerator_hours")].marked == "worse"
    one = played(planned(pool("m")), before, load_ratio=0.1, requests=60)
    assert one.compared[Key("m", "", "model_accelerator_hours")].marked == "worse", "the second pool costs, too"


def test_pool_uses_the_policies_of_its_model() -> None:
    fleet = planned(*POOLS, routing("{when: {classes: [batch]}, to: m-spot}"))
    spot = fleet.pool(PoolName("m-spot"))
    assert spot is not None
    assert spot.routing.name == "m", "what governs the model governs its second pool"


def test_unsimulated_settings_are_noted_even_if_unchanged() -> None:
    policy = """\
apiVersion: shoal.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: other}
spec: {pools: [other], cascade: [{from: other, to: m}], prefix: {source: bloom}}
"""
    guessing = pool("guessing").replace("args: [", "args: ['--speculative-config={}', ")
    fleet = planned(*POOLS, guessing, policy)
    said = list(notes_of(played(fleet, fleet, requests=20, load_ratio=0.1), traffic_for(fleet, requests=20), 1))
    assert "cascades, of routing other: not simulated on either side" in said
    assert "speculative decoding, of pools guessing: not simulated on either side" in said
    assert "prefix.source bloom, of routing other: simulated as `sent`" in said
