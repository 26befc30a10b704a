"""Check RBAC: rights are listed one by one, only the controller has any, and none allows escalation."""

from collections.abc import Iterator

from tests.manifests.rendering import Rendering, name_of
from tests.manifests.workloads import workloads

_FORBIDDEN_VERBS = {"*", "escalate", "bind", "impersonate", "deletecollection"}
_FORBIDDEN_RESOURCES = {"*", "secrets", "pods/exec", "serviceaccounts/token", "nodes/proxy"}
# For zones, readiness and the taint after an accelerator failure; nodes are cluster-wide.
_BEYOND = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}]
_CONTROLLER = {"kind": "ServiceAccount", "name": "controller", "namespace": "shoal"}


def rbac_findings(rendering: Rendering) -> Iterator[str]:
    for role in rendering.of("Role", "ClusterRole"):
        if role["kind"] == "ClusterRole" and role["rules"] != _BEYOND:
            yield f"{name_of(role)}: rights end at a namespace, but for looking at nodes and tainting them"
        for rule in role["rules"]:
            for wrong in sorted(_FORBIDDEN_VERBS & set(rule["verbs"])):
                yield f"{name_of(role)}: the verb {wrong}"
            for wrong in sorted(_FORBIDDEN_RESOURCES & set(rule["resources"])):
                yield f"{name_of(role)}: the resource {wrong}"
            if "*" in rule["apiGroups"]:
                yield f"{name_of(role)}: every API group"
            if (
                "create" not in rule["verbs"]
                and {"configmaps", "leases"} & set(rule["resources"])
                and not rule.get("resourceNames")
            ):
                yield f"{name_of(role)}: {rule['resources']} without a name"
    for binding in rendering.of("RoleBinding", "ClusterRoleBinding"):
        yield from (f"{name_of(binding)} gives rights to {each}" for each in binding["subjects"] if each != _CONTROLLER)
    accounts = {
        (account["metadata"]["namespace"], account["metadata"]["name"]): account.get(
            "automountServiceAccountToken", True
        )
        for account in rendering.of("ServiceAccount")
    }
    for workload in workloads(rendering):
        account = workload.pod.get("serviceAccountName", "default")
        mounts = workload.pod.get("automountServiceAccountToken", accounts.get((workload.namespace, account), True))
        if mounts and account != _CONTROLLER["name"]:
            yield f"{workload.name} mounts a token that it has no use for"
