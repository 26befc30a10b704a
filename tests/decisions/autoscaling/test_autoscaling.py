"""Scaling decisions: when a pool grows, when it shrinks, and what prevents a change."""

from dataclasses import replace

import pytest

from functions.api.ids import PoolName
from functions.api.snapshot import AutoscalingEntry
from functions.decisions.autoscaling.decide import ScalerState, Scaling, decide
from functions.decisions.autoscaling.forecast import Forecast
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.decisions.autoscaling.signals import PoolSignals
from tests.decisions.autoscaling.scaling_cases import DOWN, policy, signals


class Scaler:
    """A scaler with the state that the controller holds between decisions."""

    def __init__(self, scale_policy: ScalePolicy) -> None:
        self.policy = scale_policy
        self.state = ScalerState()

    def __call__(self, now: PoolSignals, forecast: Forecast | None = None, age_s: float = 0.0) -> Scaling:
        self.state, scaling = decide(self.state, self.policy, now, now.at_s + age_s, forecast)
        return scaling


def foreseen(replicas: int, at_s: float = 0.0) -> Forecast:
    return Forecast(at_s, 300.0, replicas, 1000.0, "day")


def quiet_pool(ready: int, until_s: float = 2000.0) -> Scaler:
    """Return a scaler of a pool whose utilization was low long enough for the rule to hold and the quiet time to be
    over.
    """
    scaler = Scaler(policy())
    for at_s in range(0, int(until_s), 15):
        scaler(signals(at_s, ready, utilization_ratio=0.6 if at_s < 300 else 0.2), foreseen(ready))
    return scaler


def test_worked_example_of_a_spike() -> None:
    scaler = Scaler(policy(("queue_seconds > 0.5: +5%",), ("utilization < 40%: -1",), startup_s=300.0))
    assert scaler(signals(0, 10, queue_seconds=0.8)).desired == 11
    assert scaler(signals(15, 10, starting=1, queue_seconds=0.8)).desired == 11
    assert scaler(signals(300, 11, queue_seconds=0.8)).desired == 12
    assert scaler(signals(315, 11, starting=1), foreseen(14, 315)).desired == 14
    assert scaler(signals(400, 14, utilization_ratio=0.2)).cause == "quiet"
    assert scaler(signals(614, 14, utilization_ratio=0.2)).desired == 14
    assert scaler(signals(615, 14, utilization_ratio=0.2)).desired == 13


def test_the_strongest_rule_that_holds_wins() -> None:
    scaler = Scaler(policy())
    scaling = Scaler(policy())(signals(0, 40, queue_seconds=1.0))
    assert scaling == Scaling(42, "rule", "queue_seconds > 0.5: +5% (1 s)")
    for at_s in range(0, 60, 15):
        scaler(signals(at_s, 40, ttft_p99_s=0.7))
    assert scaler(signals(60, 40, ttft_p99_s=0.7, queue_seconds=1.0)).desired == 44


def test_replicas_that_never_start_do_not_silence_rules_for_ever() -> None:
    scaler = Scaler(policy(("queue_seconds > 0.5: +1",), (), startup_s=100.0))
    assert scaler(signals(0, 10, queue_seconds=1.0)).desired == 11
    assert scaler(signals(199, 10, queue_seconds=1.0)).cause == "waiting"
    assert scaler(signals(200, 10, queue_seconds=1.0)).desired == 12


def test_a_forecast_adds_at_once_and_as_much_as_is_needed() -> None:
    scaling = Scaler(policy())(signals(0, 10), foreseen(17))
    assert scaling.desired == 17
    assert scaling.cause == "forecast"
    assert "17 replicas are needed in the next 300 s" in scaling.reason


def test_shrinks_by_one_once_a_rule_holds() -> None:
    scaler = quiet_pool(10)
    scaling = scaler(signals(2000, 10, utilization_ratio=0.2), foreseen(6, 2000))
    assert scaling == Scaling(9, "rule", "utilization < 40% for 15m: -1 (20%): one replica is drained")


def test_next_replica_drains_only_after_the_last_has_ended() -> None:
    scaler = quiet_pool(10)
    scaler(signals(2000, 10, utilization_ratio=0.2))
    assert scaler(signals(2100, 9, draining=1, utilization_ratio=0.2)).desired == 9
    assert scaler(signals(2115, 9, utilization_ratio=0.2)).desired == 8
    assert scaler(signals(2130, 8, utilization_ratio=0.2)).desired == 8  # 15 s after the last replica ended


def test_pool_below_its_desired_size_still_shrinks() -> None:
    """Ten replicas are wanted and the cluster has room for four."""
    scaler = Scaler(policy(("queue_seconds > 0.5: +6",), ("utilization < 40%: -1",), startup_s=300.0))
    scaler(signals(0, 4))
    assert scaler(signals(15, 4, queue_seconds=1.0)).desired == 10
    assert scaler(signals(600, 4, utilization_ratio=0.1)).cause == "waiting", "they may still come"
    wanted = [scaler(signals(at_s, 4, utilization_ratio=0.1)).desired for at_s in range(615, 1000, 30)]
    assert wanted[:8] == [9, 8, 7, 6, 5, 4, 3, 3], "the fourth that is there is waited for until it has gone"


def test_pool_above_its_desired_size_waits_for_surplus_to_end() -> None:
    scaler = quiet_pool(10)
    assert scaler(signals(2000, 11, utilization_ratio=0.2)).cause == "waiting"


@pytest.mark.parametrize(
    ("given", "cause", "words"),
    [
        ({"queue_seconds": 0.6, "starting": 1}, "needed", "queue_seconds"),
        ({"kv_usage_ratio": None}, "blind", "kv_usage is unknown"),
        ({"ttft_p99_s": None}, "blind", "p99_ttft is unknown"),
        ({"starting": 1}, "waiting", "starting or draining"),
        ({"draining": 1}, "waiting", "starting or draining"),
    ],
)
def test_pool_does_not_shrink_against_other_signals(given: dict[str, float | None], cause: str, words: str) -> None:
    scaler = quiet_pool(10)
    scaler.policy = policy(
        ("p99_ttft > 1.2 * slo for 60s: +10%", "queue_seconds > 0.5 for 5m: +5%", "kv_usage > 85%: +1")
    )
    scaling = scaler(signals(2000, 10, utilization_ratio=0.2, **given))  # type: ignore[arg-type]
    assert (scaling.desired, scaling.cause) == (10, cause)
    assert words in scaling.reason


def test_never_shrinks_below_what_the_forecast_needs() -> None:
    scaler = quiet_pool(10)
    scaling = scaler(signals(2000, 10, utilization_ratio=0.2), foreseen(10, 2000))
    assert (scaling.desired, scaling.cause) == (10, "needed")
    assert scaler(signals(2015, 10, utilization_ratio=0.2), foreseen(9, 2015)).desired == 9


def test_two_replicas_at_half_load_stay_two() -> None:
    scaler = Scaler(policy((), ("utilization < 60%: -1",)))
    scaler(signals(0, 2, utilization_ratio=0.5))
    scaling = scaler(signals(1000, 2, utilization_ratio=0.5))
    assert (scaling.desired, scaling.cause) == (2, "needed")
    assert "100%, above the target of 80%" in scaling.reason


def test_rule_without_its_metric_does_not_hold() -> None:
    scaler = quiet_pool(10)
    assert scaler(signals(2000, 10, utilization_ratio=None)).desired == 10


def test_stale_signals_change_nothing() -> None:
    scaler = quiet_pool(10)
    scaling = scaler(signals(2000, 10, utilization_ratio=0.2, queue_seconds=3.0), foreseen(20), age_s=46.0)
    assert scaling == Scaling(10, "blind", "no signals for 46 s: nothing changes")


def test_pool_does_not_shrink_in_the_quiet_time_after_stale_signals() -> None:
    scaler = Scaler(policy((), ("utilization < 40%: -1",)))
    scaler(signals(0, 10, utilization_ratio=0.2))
    scaler(signals(1000, 10, utilization_ratio=0.2), age_s=60.0)
    assert scaler(signals(1100, 10, utilization_ratio=0.2)).cause == "quiet"
    assert scaler(signals(1360, 10, utilization_ratio=0.2)).desired == 9


def test_new_scaler_keeps_current_replicas_for_the_quiet_time() -> None:
    scaler = Scaler(policy((), ("utilization < 40%: -1",)))
    assert scaler(signals(0, 7, starting=2, utilization_ratio=0.1)).desired == 9
    assert scaler(signals(299, 9, utilization_ratio=0.1)).desired == 9
    assert scaler(signals(300, 9, utilization_ratio=0.1)).desired == 8


def test_a_crashed_replica_is_still_wanted() -> None:
    scaler = Scaler(policy())
    scaler(signals(0, 10))
    assert scaler(signals(15, 8)).desired == 10


def test_bounds_apply_and_are_reported() -> None:
    scaler = Scaler(policy(min_replicas=2, max_replicas=12))
    scaling = scaler(signals(0, 11), foreseen(30))
    assert (scaling.desired, scaling.cause) == (12, "bounds")
    assert "the policy allows 2 to 12" in scaling.reason
    assert Scaler(policy(min_replicas=4))(signals(0, 1)).desired == 4


def test_lowered_maximum_applies_at_once() -> None:
    scaler = Scaler(policy())
    scaler(signals(0, 10))
    scaler.policy = policy(max_replicas=6)
    assert scaler(signals(15, 10)).desired == 6


def test_idle_pool_shrinks_to_its_minimum() -> None:
    scaler = Scaler(policy(("p99_ttft > 1.2 * slo: +1", "queue_seconds > 0.5: +1"), DOWN))
    replicas, sizes = 3, []
    idle = {"arrivals_per_s": 0.0, "ttft_p99_s": None, "ttft_p50_s": None, "queue_seconds": None}
    for at_s in range(0, 4000, 30):
        scaling = scaler(signals(at_s, replicas, utilization_ratio=0.0, **idle))
        replicas = scaling.desired
        sizes.append(replicas)
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_scale_policy_is_built_from_the_pushed_entry() -> None:
    entry = AutoscalingEntry(
        name="p", pool=PoolName("p"), min_replicas=2, max_replicas=8, warm=1,
        scale_up=("queue_seconds > 0.5: +5%",), scale_down=("utilization < 40% for 15m: -1",),
    )  # fmt: skip
    made = ScalePolicy.from_entry(entry, slo_s=0.5, startup_s=60.0)
    assert (made.min_replicas, made.max_replicas, made.warm) == (2, 8, 1)
    assert [rule.text for rule in (*made.up, *made.down)] == [*entry.scale_up, *entry.scale_down]
    assert made.quiet_after_growing_s == 300.0
    assert replace(made, startup_s=400.0).quiet_after_growing_s == 400.0


def test_minimum_above_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match="raise max above min"):
        policy(min_replicas=5, max_replicas=4)
