"""Prometheus metrics of the controller. Labels come from short fixed lists, or are models and pools."""

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ROLLOUTS_MAX = 1000
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ControllerMetrics:
    """Metrics in a registry of their own, so that two controllers in one test do not collide."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix, to = "shoal_controller_", self.registry
        self._reconcile_s = Histogram(
            f"{prefix}reconcile_seconds", "Duration of a reconcile pass.", buckets=_SECONDS, registry=to
        )
        self._reconciles = Counter(f"{prefix}reconciles_total", "Reconcile passes by result.", ["result"], registry=to)
        self._errors = Counter(f"{prefix}errors_total", "Errors of reconcile passes by class.", ["class"], registry=to)
        self._leader = Gauge(f"{prefix}leader", "1 if this process leads, else 0.", registry=to)
        self._token = Gauge(f"{prefix}term_token", "Fencing token of the term; 0 on a standby.", registry=to)
        self._writes = Gauge(f"{prefix}api_requests", "Requests to the API server in this term.", ["what"], registry=to)
        self._objects = Gauge(f"{prefix}objects", "Objects in the watches, by kind.", ["kind"], registry=to)
        self._refused = Gauge(
            f"{prefix}refused_objects",
            "Invalid objects; for a commit that does not validate, its invalid files.",
            registry=to,
        )
        self._disobeyed = Gauge(
            f"{prefix}policies_not_obeyed",
            "Objects in force that are not obeyed, by kind and reason; their condition Obeyed says what to do.",
            ["kind", "reason"],
            registry=to,
        )
        self._events = Counter(
            f"{prefix}events_total",
            "Kubernetes Events by outcome: sent, dropped, failed.",
            ["outcome"],
            registry=to,
        )
        self._deliveries = Counter(
            f"{prefix}webhook_deliveries_total",
            "Webhook deliveries by result: taken, passed_over, unsigned, malformed, limited.",
            ["result"],
            registry=to,
        )
        self._pending = Gauge(
            f"{prefix}pending_status_writes", "Pending writes of statuses and finalizers.", registry=to
        )
        self._suspended = Gauge(f"{prefix}suspended", "1 if suspended, else 0.", registry=to)
        self._epoch = Gauge(f"{prefix}snapshot_epoch", "Epoch of the registry's snapshot.", registry=to)
        self._rollouts = Gauge(
            "shoal_rollout_stage", "Stage of a rollout under way; 0 while it loads.", ["model"], registry=to
        )
        self._desired = Gauge(
            "shoal_autoscaler_desired_replicas",
            "Replicas that the autoscaler wants for a pool, by reason.",
            ["pool", "reason"],
            registry=to,
        )
        self._applied = Gauge(
            f"{prefix}last_applied_timestamp_seconds",
            "Time at which everything wanted was last in force, or the term began; NaN on a standby.",
            registry=to,
        )
        self.set_leader(None)

    def observe_pass(self, result: str, took_s: float) -> None:
        self._reconcile_s.observe(took_s)
        self._reconciles.labels(result=result).inc()

    def count_error(self, error_class: str) -> None:
        self._errors.labels(**{"class": error_class}).inc()

    def set_leader(self, token: int | None, now_unix_s: float = math.nan) -> None:
        """Set leadership, its token (None: a standby, shown as 0), and the last-applied time. On a standby that time is
        NaN, for which no alert fires."""
        self._leader.set(token is not None)
        self._token.set(token or 0)
        self._applied.set(now_unix_s)

    def set_request_counts(self, counts: Mapping[str, int]) -> None:
        for what, count in counts.items():
            self._writes.labels(what=what).set(count)

    def set_objects(self, objects: Mapping[str, int], refused: int, pending: int, *, suspended: bool) -> None:
        for kind, count in objects.items():
            self._objects.labels(kind=kind).set(count)
        self._refused.set(refused)
        self._pending.set(pending)
        self._suspended.set(suspended)

    def count_delivery(self, result: str) -> None:
        self._deliveries.labels(result=result).inc()

    def count_event(self, outcome: str) -> None:
        self._events.labels(outcome=outcome).inc()

    def set_disobeyed(self, objects: Mapping[tuple[str, str], int]) -> None:
        """Set the number of objects that are not obeyed, by kind and reason; all other values are cleared."""
        self._disobeyed.clear()
        for (kind, reason), count in objects.items():
            self._disobeyed.labels(kind=kind, reason=reason).set(count)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.set(epoch)

    def set_rollout_stages(self, stages: Mapping[str, int]) -> None:
        """Set the stage by model, for at most ROLLOUTS_MAX rollouts under way; all others are cleared."""
        self._rollouts.clear()
        for model, stage in sorted(stages.items())[:ROLLOUTS_MAX]:
            self._rollouts.labels(model=model).set(stage)

    def set_desired_replicas(self, pools: Mapping[str, tuple[str, int]]) -> None:
        """Set the desired number of replicas and its cause by pool; all other values are cleared."""
        self._desired.clear()
        for pool, (cause, replicas) in pools.items():
            self._desired.labels(pool=pool, reason=cause).set(replicas)

    def set_last_applied(self, unix_s: float) -> None:
        self._applied.set(unix_s)
