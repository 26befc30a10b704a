"""`shoal suspend`, `resume` and `reconcile` for a cluster: annotations of the controller's ConfigMap.

    shoal.dev/suspend, shoal.dev/suspend-reason     the controller publishes and writes no declared change
    shoal.dev/reconcile-requested-at                reconcile now; handled once the ConfigMap's data repeats the text

`kubectl annotate` does the same (docs/explanation/kubernetes.md). `resume` and `reconcile` also wait for the result.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from functions.cli.cluster.access import Body, Cluster, ClusterChoice, KubeCluster
from functions.cli.cluster.picture import revision_of
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console

RECORD = "shoal-controller"
SUSPEND, REASON = "shoal.dev/suspend", "shoal.dev/suspend-reason"
REQUESTED_AT, HANDLED_AT = "shoal.dev/reconcile-requested-at", "lastHandledReconcileAt"
TIMEOUT_S = 60.0
_POLL_S = 0.5
_REASON_MAX_CHARS = 500


def suspend(choice: ClusterChoice, reason: str) -> None:
    _annotate(KubeCluster(choice), {SUSPEND: "true", REASON: reason[:_REASON_MAX_CHARS] or None})
    words = "Suspended: the fleet keeps running; no declared change is published or written until `shoal resume`."
    TerminalReporter(make_console()).print_line(words)


def resume(choice: ClusterChoice) -> None:
    _order_and_wait(KubeCluster(choice), "Resuming", {SUSPEND: None, REASON: None})


def reconcile(choice: ClusterChoice) -> None:
    _order_and_wait(KubeCluster(choice), "Reconciling", {})


def _order_and_wait(cluster: Cluster, title: str, annotations: dict[str, str | None]) -> None:
    """Annotate, and wait until the controller has handled the request. Fail if the revision was refused."""
    asked = datetime.now(UTC).isoformat()
    _annotate(cluster, {**annotations, REQUESTED_AT: asked})
    with TerminalReporter(make_console()).step(title) as step:
        record = wait_handled(lambda: _record(cluster), asked, time.monotonic)
        step.note(outcome(record))


def wait_handled(read: Callable[[], Body], asked: str, clock: Callable[[], float]) -> Body:
    deadline_s = clock() + TIMEOUT_S
    while True:
        record = read()
        if (record.get("data") or {}).get(HANDLED_AT) == asked:
            return record
        if clock() > deadline_s:
            words = "`shoal status --context …` shows whether a controller is leader; the order stays valid"
            raise CommandRefused(f"no controller has handled the order within {TIMEOUT_S:.0f} s: {words}")
        time.sleep(_POLL_S)


def outcome(record: Body) -> str:
    """Return the result of the reconciliation from the record. Fail if the newest revision was refused."""
    revision: dict[str, Any] = revision_of(record)
    newest = revision["history"][0] if revision["history"] else None
    if newest is not None and newest["result"] == "refused":
        raise CommandRefused(f"{newest['revision']} is refused: {newest['message']}")
    if newest is not None and newest["result"] != "applied":
        return f"{newest['revision']} is {newest['result']}: {newest['message'][:300]}"
    applied = revision["last_applied"]
    return f"{applied} is applied" if applied else "handled; `shoal status --context …` shows every object's condition"


def _annotate(cluster: Cluster, annotations: dict[str, str | None]) -> None:
    _record(cluster)
    cluster.patch(_path(cluster), {"metadata": {"annotations": annotations}})


def _record(cluster: Cluster) -> Body:
    record = cluster.get(_path(cluster))
    if record is None:
        system = cluster.choice.system
        raise CommandRefused(f"no controller has been leader in {system} yet: there is no ConfigMap {RECORD}")
    return record


def _path(cluster: Cluster) -> str:
    return f"/api/v1/namespaces/{cluster.choice.system}/configmaps/{RECORD}"
