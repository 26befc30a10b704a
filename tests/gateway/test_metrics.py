"""Metrics: what a scrape shows of the snapshot in use."""

from dataclasses import dataclass

import pytest
from prometheus_client import generate_latest

from functions.gateway.errors import RequestRejected
from tests.gateway.hello import Playing, finishes
from tests.gateway.rig import NOW_UNIX_S, ROLLOUT, Rig, catalogue, headers, limits


@dataclass
class Source:
    confirmed_unix_s: float | None = None
    refused_total: int = 0


def scraped(rig: Rig, name: str) -> float | None:
    rig.gauges.scrape()
    return rig.gateway.services.metrics.registry.get_sample_value(name)


def test_epoch_metric_is_that_of_the_snapshot_in_use() -> None:
    rig = Rig()
    assert scraped(rig, "shoal_snapshot_epoch") == 1
    rig.gateway.swap(catalogue(epoch=7))
    assert scraped(rig, "shoal_snapshot_epoch") == 7


@pytest.mark.parametrize(
    ("source", "age_s"),
    [(None, 40.0), (Source(), 40.0), (Source(NOW_UNIX_S - 3), 3.0), (Source(NOW_UNIX_S + 3), 0.0)],
    ids=["none", "never heard", "heard", "a clock that was set back"],
)
def test_snapshot_age_counts_from_confirmation_or_compilation(source: Source | None, age_s: float) -> None:
    rig = Rig()
    rig.gateway.swap(catalogue(compiled_unix_s=NOW_UNIX_S - 40))
    rig.gateway.services.state.snapshot_source = source
    assert scraped(rig, "shoal_snapshot_age_seconds") == age_s


def test_refused_snapshots_are_counted_once_each() -> None:
    rig, source = Rig(), Source(refused_total=1)
    rig.gateway.services.state.snapshot_source = source
    assert scraped(rig, "shoal_snapshot_refused_total") == 1
    assert scraped(rig, "shoal_snapshot_refused_total") == 1
    source.refused_total = 3
    assert scraped(rig, "shoal_snapshot_refused_total") == 3


def test_session_pins_are_in_the_metrics() -> None:
    rig = Rig()
    pins = rig.gateway.services.rollouts.splits.pins
    for number in range(3):
        pins.pin(ROLLOUT, bytes([number]) * 8, "control", 300.0)
    pins.pin(ROLLOUT, b"c" * 8, "candidate", 300.0)
    assert (scraped(rig, "shoal_session_pins"), scraped(rig, "shoal_session_pins_untold")) == (4, 4)
    pins.lost_total = 2
    assert scraped(rig, "shoal_session_pins_lost_total") == 2
    pins.lost_total = 5
    assert scraped(rig, "shoal_session_pins_lost_total") == 5


def test_snapshot_unconfirmed_for_too_long_rejects_requests() -> None:
    """A key that was revoked while the registry was away stayed valid until it came back."""
    rig = Rig(limits=limits(snapshot_max_age_s=3600.0)).with_replicas("r0")
    gateway, source = rig.gateway, Source(NOW_UNIX_S - 3600.0)
    gateway.services.state.snapshot_source = source
    gateway.sweep()
    assert gateway.not_ready_reason() is None
    source.confirmed_unix_s = NOW_UNIX_S - 3601.0
    gateway.sweep()
    assert "SHOAL_GATEWAY_SNAPSHOT_MAX_AGE_S" in (gateway.not_ready_reason() or "")
    with pytest.raises(RequestRejected) as refused:
        gateway.precheck(headers())
    assert (refused.value.answer.status, refused.value.answer.code) == (503, "snapshot_too_old")
    source.confirmed_unix_s = NOW_UNIX_S
    gateway.sweep()
    assert gateway.not_ready_reason() is None


def test_snapshot_age_limit_of_zero_never_expires() -> None:
    rig = Rig(limits=limits(snapshot_max_age_s=0.0)).with_replicas("r0")
    rig.gateway.services.state.snapshot_source = Source(1.0)
    rig.gateway.sweep()
    assert rig.gateway.not_ready_reason() is None


async def test_series_of_models_beyond_the_busiest_are_removed(play: Playing) -> None:
    """Otherwise counters and histograms of models that tenants register would grow for as long as a gateway runs."""
    p = play("r0")
    metrics = p.gateway.services.metrics
    p.ask(stream=True)
    finishes(await p.connects())
    text = generate_latest(metrics.registry).decode()
    assert 'shoal_model_ttft_seconds_count{model="acme/bot"} 1.0' in text
    metrics._forget_model("acme/bot")
    assert 'model="acme/bot"' not in generate_latest(metrics.registry).decode()
