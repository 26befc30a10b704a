"""Mistakes between objects: missing references, open ports, excess rights, invalid objects of shoal's kinds."""

from tests.manifests.checks.models import model_findings
from tests.manifests.checks.network import network_findings
from tests.manifests.checks.rbac import rbac_findings
from tests.manifests.checks.references import reference_findings
from tests.manifests.checks.schemas import own_kind_findings, webhook_findings
from tests.manifests.checks.spread import spread_findings
from tests.manifests.checks.truth import truth_findings
from tests.manifests.mistakes import (
    Mistake,
    annotations,
    container,
    controller,
    drop_variable,
    gateway,
    named_rule,
    policy,
    pool,
    registry,
    remove,
    role,
    runtime,
    variable,
)

LINK_MISTAKES = [
    # references
    Mistake(
        "no account", reference_findings, lambda r: remove(r, "ServiceAccount", "gateway"), "no ServiceAccount gateway"
    ),
    Mistake("no role", reference_findings, lambda r: remove(r, "Role", "controller", "shoal"), "no Role controller"),
    Mistake(
        "no subject",
        reference_findings,
        lambda r: remove(r, "ServiceAccount", "controller"),
        "no ServiceAccount controller",
    ),
    Mistake(
        "no priority",
        reference_findings,
        lambda r: remove(r, "PriorityClass", "shoal-control-plane"),
        "no PriorityClass",
    ),
    Mistake(
        "no config", reference_findings, lambda r: remove(r, "ConfigMap", "engine-hooks"), "ConfigMap that is not there"
    ),
    Mistake(
        "no key",
        reference_findings,
        lambda r: r.one("ConfigMap", "shoal-installation", "shoal")["data"].pop("bus-url"),
        "wants bus-url",
    ),
    Mistake(
        "unknown secret",
        reference_findings,
        lambda r: gateway(r)["volumes"][0]["secret"].update(secretName="token"),
        "not in the README",
    ),
    Mistake(
        "unknown key",
        reference_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_PEPPER_FILE").update(
            value="/run/secrets/shoal/pepper/salt"
        ),
        "the key salt",
    ),
    Mistake(
        "nothing mounted",
        reference_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_PEPPER_FILE").update(value="/etc/pepper"),
        "nothing is mounted",
    ),
    Mistake("no volume", reference_findings, lambda r: runtime(r)["volumes"].pop(0), "which is no volume"),
    Mistake("idle volume", reference_findings, lambda r: container(runtime(r))["volumeMounts"].pop(), "nothing mounts"),
    Mistake(
        "service without pods",
        reference_findings,
        lambda r: r.one("Service", "bus")["spec"]["selector"].update({"app.kubernetes.io/name": "valkey"}),
        "selects no pod",
    ),
    Mistake(
        "service without port",
        reference_findings,
        lambda r: r.one("Service", "bus")["spec"]["ports"][0].update(targetPort=6380),
        "has no port 6380",
    ),
    Mistake(
        "budget of nobody",
        reference_findings,
        lambda r: r.one("PodDisruptionBudget", "gateway")["spec"]["selector"]["matchLabels"].update({"app": "gateway"}),
        "selects no pod",
    ),
    # truth
    Mistake(
        "no database",
        truth_findings,
        lambda r: r.one("ConfigMap", "shoal-installation", "shoal")["data"].update({"database-url": ""}),
        "the truth lies in the pod",
    ),
    Mistake(
        "a file in the pod",
        truth_findings,
        lambda r: r.one("ConfigMap", "shoal-installation", "shoal")["data"].update(
            {"database-url": "sqlite:////var/lib/shoal/registry.db"}
        ),
        "goes with it",
    ),
    Mistake(
        "a password in an address",
        truth_findings,
        lambda r: r.one("ConfigMap", "shoal-installation", "shoal")["data"].update(
            {"database-url": "postgresql://shoal:secret@postgres.example.com/shoal"}
        ),
        "holds a password",
    ),
    Mistake(
        "no password",
        truth_findings,
        lambda r: drop_variable(container(registry(r)), "SHOAL_REGISTRY_DATABASE_PASSWORD_FILE"),
        "PASSWORD_FILE is not set",
    ),
    # models
    Mistake(
        "no runtime",
        model_findings,
        lambda r: pool(r)["model"]["modelFormat"].update(name="vllm"),
        "no agent would run",
    ),
    Mistake(
        "no claim",
        model_findings,
        lambda r: remove(r, "PersistentVolumeClaim", "shoal-models"),
        "no claim shoal-models",
    ),
    Mistake("no manifest", model_findings, lambda r: controller(r)["volumes"].clear(), "no manifest of smollm2-135m"),
    Mistake(
        "more adapters",
        model_findings,
        lambda r: annotations(r).update({"shoal.dev/max-adapters": "9"}),
        "shoal.dev/max-adapters says 9, and the engine's arguments 8",
    ),
    Mistake(
        "larger rank",
        model_findings,
        lambda r: annotations(r).update({"shoal.dev/max-lora-rank": "64"}),
        "shoal.dev/max-lora-rank says 64, and the engine's arguments 16",
    ),
    Mistake(
        "all in one zone",
        spread_findings,
        lambda r: pool(r)["topologySpreadConstraints"].pop(0),
        "nothing spreads its pods over topology.kubernetes.io/zone",
    ),
    Mistake(
        "pending without a zone",
        spread_findings,
        lambda r: pool(r)["topologySpreadConstraints"][0].update(whenUnsatisfiable="DoNotSchedule"),
        "its pods would stay pending",
    ),
    Mistake(
        "counts another pool",
        spread_findings,
        lambda r: pool(r)["topologySpreadConstraints"][1]["labelSelector"]["matchLabels"].update(
            {"shoal.dev/pool": "llama-3-8b"}
        ),
        "and not its own",
    ),
    # network
    Mistake(
        "open by omission",
        network_findings,
        lambda r: remove(r, "NetworkPolicy", "default-deny", "shoal-models"),
        "no default deny",
    ),
    Mistake(
        "deny that allows", network_findings, lambda r: policy(r, "default-deny").update(egress=[{}]), "no default deny"
    ),
    Mistake(
        "engines open to Prometheus",
        network_findings,
        lambda r: policy(r, "engines", "shoal-models")["ingress"][3]["ports"].append({"port": 8080}),
        "reaches engines' whole API",
    ),
    Mistake(
        "policy of nobody",
        network_findings,
        lambda r: policy(r, "bus")["podSelector"]["matchLabels"].update({"app.kubernetes.io/name": "valkey"}),
        "selects no pod",
    ),
    Mistake(
        "peer that is nobody",
        network_findings,
        lambda r: policy(r, "bus")["ingress"][0]["from"][0]["podSelector"]["matchLabels"].update(
            {"app.kubernetes.io/name": "gate"}
        ),
        "is nobody",
    ),
    Mistake(
        "peer elsewhere",
        network_findings,
        lambda r: policy(r, "engines", "shoal-models")["ingress"][0]["from"][0].pop("namespaceSelector"),
        "is nobody",
    ),
    Mistake(
        "dead port",
        network_findings,
        lambda r: policy(r, "engines", "shoal-models")["ingress"][0]["ports"][0].update(port=8000),
        "listens on 8000",
    ),
    Mistake(
        "dead port outwards",
        network_findings,
        lambda r: policy(r, "gateway")["egress"][1]["ports"][0].update(port=6380),
        "listens on 6380",
    ),
    Mistake(
        "moved port",
        network_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_METRICS_PORT").update(value="9000"),
        "listens on 8445",
    ),
    # rights
    Mistake(
        "every verb", rbac_findings, lambda r: role(r, "shoal-models")["rules"][0].update(verbs=["*"]), "the verb *"
    ),
    Mistake(
        "secrets",
        rbac_findings,
        lambda r: role(r, "shoal")["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}),
        "the resource secrets",
    ),
    Mistake("any lease", rbac_findings, lambda r: named_rule(r, "leases").pop("resourceNames"), "without a name"),
    Mistake(
        "somebody else",
        rbac_findings,
        lambda r: r.one("RoleBinding", "controller", "shoal")["subjects"][0].update(name="gateway"),
        "gives rights to",
    ),
    Mistake(
        "the cluster", rbac_findings, lambda r: role(r, "shoal").update(kind="ClusterRole"), "rights end at a namespace"
    ),
    Mistake(
        "a token",
        rbac_findings,
        lambda r: r.one("ServiceAccount", "registry").update(automountServiceAccountToken=True),
        "mounts a token",
    ),
    # shoal's kinds
    Mistake("unknown key", own_kind_findings, lambda r: r.one("Tenant", "acme")["spec"].update(teir="x"), "teir"),
    Mistake("unknown tier", own_kind_findings, lambda r: r.one("Tenant", "acme")["spec"].update(tier="gold"), "gold"),
    Mistake(
        "not ours",
        own_kind_findings,
        lambda r: r.one("InferenceService", "smollm2-135m")["metadata"].pop("labels"),
        "no InferenceService has that",
    ),
    Mistake("more than most", webhook_findings, lambda r: pool(r).update(minReplicas=9), "spec.predictor"),
]
