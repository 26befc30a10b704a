"""What `kubectl get` shows of each kind, beside its name: what it says, whether it is in force, and how old it is."""

Column = dict[str, str | int]

_SHOWN: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Tenant": (("Tier", "string", ".spec.tier"), ("Models", "string", ".spec.models")),
    "Model": (
        ("Id", "string", ".spec.id"),
        ("Type", "string", ".spec.type"),
        ("Base", "string", ".spec.base"),
        ("Stable", "string", ".spec.channels.stable"),
    ),
    "QuotaPolicy": (
        ("Weight", "number", ".spec.weight"),
        ("Requests/min", "integer", ".spec.limits.requestsPerMinute"),
        ("Concurrent", "integer", ".spec.limits.concurrentRequests"),
    ),
    "RoutingPolicy": (("Pools", "string", ".spec.pools"), ("Attempts", "integer", ".spec.retry.maxAttempts")),
    "AdmissionPolicy": (("Pools", "string", ".spec.pools"), ("Queued", "integer", ".spec.maxQueuedTokens")),
    "RolloutPolicy": (
        ("Stages", "string", ".spec.stages[*].percent"),
        ("Min requests", "integer", ".spec.minRequests"),
    ),
    "AutoscalingPolicy": (
        ("Pool", "string", ".spec.pool"),
        ("Min", "integer", ".spec.replicas.min"),
        ("Max", "integer", ".spec.replicas.max"),
    ),
}


def printer_columns(kind: str) -> list[Column]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    shown: list[Column] = [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in _SHOWN[kind]]
    return [
        *shown,
        {"name": "Ready", "type": "string", "jsonPath": f"{ready}.status"},
        {"name": "Reason", "type": "string", "jsonPath": f"{ready}.reason", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
