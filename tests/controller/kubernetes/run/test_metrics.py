"""Metrics of the controller that alerts rely on."""

import math

from prometheus_client import CollectorRegistry

from functions.controller.kubernetes.run.metrics import ControllerMetrics


def test_last_applied_metric_is_set_by_the_leader_only() -> None:
    """`time() - … > 600` fires for a leader that applies nothing, and never for a standby."""
    metrics = ControllerMetrics()
    assert math.isnan(applied(metrics.registry))
    metrics.set_leader(3, 1000.0)
    assert applied(metrics.registry) == 1000.0
    metrics.set_last_applied(1500.0)
    assert applied(metrics.registry) == 1500.0
    metrics.set_leader(None)
    assert math.isnan(applied(metrics.registry))


def applied(registry: CollectorRegistry) -> float:
    found = registry.get_sample_value("shoal_controller_last_applied_timestamp_seconds")
    assert found is not None
    return found
