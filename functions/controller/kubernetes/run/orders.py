"""What people tell the controller, by annotations on its record (the ConfigMap `shoal-controller`).

    kubectl -n shoal annotate configmap shoal-controller shoal.dev/suspend=true           # and =false, or remove it
    kubectl -n shoal annotate configmap shoal-controller --overwrite \
        shoal.dev/reconcile-requested-at="$(date -Is)"                                    # now, whatever the wait

Suspended, nothing that is declared is published and nothing written, drift correction included; what runs goes on. A
rollout that is taken back still is, and published. A request is handled once: its text is then `lastHandledReconcileAt`
in the record.
"""

from dataclasses import dataclass, replace

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.objects import CONFIG_MAP, mapping_at
from functions.controller.kubernetes.record_store import RECORD_NAME, RecordStore

SUSPEND = "shoal.dev/suspend"
REQUESTED_AT = "shoal.dev/reconcile-requested-at"
HANDLED_AT = "lastHandledReconcileAt"
_REQUEST_MAX_CHARS = 128


@dataclass(frozen=True, slots=True)
class Orders:
    suspended: bool = False
    requested_at: str = ""
    handled_at: str = ""

    @property
    def asks_now(self) -> bool:
        return bool(self.requested_at) and self.requested_at != self.handled_at


def read_orders(api: KubeApi, namespace: str) -> Orders:
    """Blocks. No record yet is no order."""
    found = api.get(CONFIG_MAP, namespace, RECORD_NAME)
    if found is None:
        return Orders()
    annotations = mapping_at(found, "metadata", "annotations")
    return Orders(
        suspended=str(annotations.get(SUSPEND, "")).lower() == "true",
        requested_at=str(annotations.get(REQUESTED_AT, ""))[:_REQUEST_MAX_CHARS],
        handled_at=str(mapping_at(found, "data").get(HANDLED_AT, "")),
    )


def mark_handled(api: KubeApi, namespace: str, orders: Orders) -> None:
    """Blocks; Stale where the record was written meanwhile."""
    store = RecordStore(api, namespace)
    store.write(replace(store.read(), last_handled_reconcile_at=orders.requested_at))
