"""Changing a pool's size by new bounds in its AutoscalingPolicy, and waiting for the replicas.

With the git source the policy is git's, and a push's work: there the pool is left as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.installation import MODELS, Body, Installation, wait_until

MOVED_S = 300.0
AT_ONCE = {
    "scaleUp": ["queue_seconds > 100000: +1"],
    "scaleDown": ["utilization < 100%: -1"],
}  # rules under which only the bounds decide the size


def policy_of(installation: Installation) -> Body | None:
    """Return the pool's AutoscalingPolicy if tests may change it."""
    if installation.source() != "kubernetes":
        return None
    found = installation.get("autoscalingpolicies")["items"]
    return next((body for body in found if body["spec"]["pool"] == installation.pool), None)


def least_of(policy: Body) -> int:
    return int(policy["spec"]["replicas"]["min"])


def bounds(least: int, most: int) -> dict[str, Any]:
    return {"replicas": {"min": least, "max": most}}


def declare(installation: Installation, policy: Body, spec: Body) -> None:
    metadata = {name: policy["metadata"][name] for name in ("name", "namespace")}
    installation.apply({**{name: policy[name] for name in ("apiVersion", "kind")}, "metadata": metadata, "spec": spec})


def until_at(installation: Installation, replicas: int) -> float:
    """Wait until exactly so many engines are ready and wanted; return the seconds that took."""
    return wait_until(f"{replicas} replicas", lambda: is_at(installation, replicas), MOVED_S, every_s=1.0)


def is_at(installation: Installation, replicas: int) -> bool:
    wanted = predictor(installation).get("minReplicas")
    return bool(wanted == replicas and len(installation.pods("engine")) == replicas)


def predictor(installation: Installation) -> Body:
    pool = installation.get("inferenceservices", "-l", f"shoal.dev/pool={installation.pool}", namespace=MODELS)
    found: Body = pool["items"][0]["spec"]["predictor"]
    return found


@contextmanager
def held(installation: Installation, replicas: int) -> Iterator[None]:
    """Fix the number of replicas for a while, since a replica that joins would attract load; restore the policy."""
    policy = policy_of(installation)
    if policy is None:
        yield
        return
    declare(installation, policy, {**policy["spec"], **bounds(replicas, replicas), **AT_ONCE})
    try:
        until_at(installation, replicas)
        yield
    finally:
        declare(installation, policy, policy["spec"])
