"""Mistakes in a pod: image, security context, environment, times and ports."""

from tests.manifests.checks.hardening import hardening_findings
from tests.manifests.checks.images import image_findings
from tests.manifests.checks.lifetimes import lifetime_findings
from tests.manifests.checks.parity import parity_findings
from tests.manifests.checks.settings import settings_findings
from tests.manifests.mistakes import (
    AGENT,
    Mistake,
    annotations,
    container,
    controller,
    drop_variable,
    gateway,
    pool,
    registry,
    runtime,
    variable,
)

POD_MISTAKES = [
    # images
    Mistake(
        "no tag",
        image_findings,
        lambda r: container(gateway(r)).update(image="registry.example.com/shoal/gateway"),
        "no version",
    ),
    Mistake(
        "latest",
        image_findings,
        lambda r: container(runtime(r)).update(image="docker.io/vllm/vllm-openai:latest"),
        "no version",
    ),
    Mistake(
        "own image by a tag",
        image_findings,
        lambda r: container(registry(r)).update(image="your.registry/shoal/registry:0.1.0"),
        "pin its digest",
    ),
    Mistake(
        "no registry",
        image_findings,
        lambda r: container(controller(r)).update(image="controller:1"),
        "names no registry",
    ),
    Mistake(
        "not built here",
        image_findings,
        lambda r: container(gateway(r)).update(image="registry.example.com/shoal/gatweay:0.1.0"),
        "built by no target",
    ),
    # hardening
    Mistake(
        "root",
        hardening_findings,
        lambda r: container(gateway(r))["securityContext"].update(runAsNonRoot=False),
        "may run as root",
    ),
    Mistake(
        "no user",
        hardening_findings,
        lambda r: container(runtime(r), AGENT)["securityContext"].pop("runAsUser"),
        "names no user",
    ),
    Mistake(
        "writable root",
        hardening_findings,
        lambda r: container(controller(r))["securityContext"].pop("readOnlyRootFilesystem"),
        "write to its root",
    ),
    Mistake(
        "capabilities",
        hardening_findings,
        lambda r: container(registry(r))["securityContext"].update(capabilities={"drop": ["NET_RAW"]}),
        "keeps capabilities",
    ),
    Mistake(
        "privileges",
        hardening_findings,
        lambda r: container(runtime(r))["securityContext"].pop("allowPrivilegeEscalation"),
        "gain privileges",
    ),
    Mistake(
        "no seccomp",
        hardening_findings,
        lambda r: container(gateway(r))["securityContext"].pop("seccompProfile"),
        "no seccomp",
    ),
    Mistake("host network", hardening_findings, lambda r: controller(r).update(hostNetwork=True), "hostNetwork is set"),
    Mistake(
        "host path",
        hardening_findings,
        lambda r: runtime(r)["volumes"].append({"name": "node", "hostPath": {"path": "/"}}),
        "of a kind",
    ),
    Mistake(
        "unbounded volume",
        hardening_findings,
        lambda r: runtime(r)["volumes"].append({"name": "more", "emptyDir": {}}),
        "no sizeLimit",
    ),
    Mistake(
        "no requests",
        hardening_findings,
        lambda r: container(controller(r))["resources"].pop("requests"),
        "requests no cpu",
    ),
    Mistake(
        "no memory limit",
        hardening_findings,
        lambda r: pool(r)["model"]["resources"].pop("limits"),
        "no limit of memory",
    ),
    Mistake(
        "no readiness",
        hardening_findings,
        lambda r: container(runtime(r), AGENT).pop("readinessProbe"),
        "no readinessProbe",
    ),
    Mistake(
        "no liveness", hardening_findings, lambda r: container(gateway(r)).pop("livenessProbe"), "no livenessProbe"
    ),
    Mistake(
        "no time to start", hardening_findings, lambda r: container(gateway(r)).pop("startupProbe"), "no startupProbe"
    ),
    # settings
    Mistake(
        "unknown variable",
        settings_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_PORT").update(name="SHOAL_GATEWAY_PROT"),
        "no setting of functions.gateway",
    ),
    Mistake(
        "pod of IPv4 alone",
        settings_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_HOST").update(value="0.0.0.0"),
        "of IPv4 alone",
    ),
    Mistake(
        "left at its default",
        parity_findings,
        lambda r: drop_variable(container(gateway(r)), "SHOAL_GATEWAY_TRACE_DIR"),
        "does not set SHOAL_GATEWAY_TRACE_DIR",
    ),
    Mistake(
        "in one target only",
        parity_findings,
        lambda r: container(runtime(r), AGENT)["env"].append({"name": "SHOAL_REPLICA_FETCH_TIMEOUT_S", "value": "9"}),
        "sets SHOAL_REPLICA_FETCH_TIMEOUT_S",
    ),
    Mistake(
        "missing variable",
        settings_findings,
        lambda r: drop_variable(container(gateway(r)), "SHOAL_GATEWAY_PEPPER_FILE"),
        "SHOAL_GATEWAY_PEPPER_FILE: Field required",
    ),
    Mistake(
        "missing in the agent",
        settings_findings,
        lambda r: drop_variable(container(runtime(r), AGENT), "SHOAL_REPLICA_CACHE_DIR"),
        "SHOAL_REPLICA_CACHE_DIR: Field required",
    ),
    Mistake(
        "not a number",
        settings_findings,
        lambda r: variable(container(registry(r)), "SHOAL_REGISTRY_PORT").update(value="http"),
        "SHOAL_REGISTRY_PORT: Input should be a valid integer",
    ),
    Mistake(
        "no pool",
        settings_findings,
        lambda r: r.one("InferenceService", "smollm2-135m")["metadata"]["labels"].clear(),
        "SHOAL_REPLICA_POOL",
    ),
    Mistake(
        "rank of words",
        settings_findings,
        lambda r: annotations(r).update({"shoal.dev/max-lora-rank": "high"}),
        "SHOAL_REPLICA_MAX_LORA_RANK",
    ),
    Mistake(
        "nobody reads it",
        settings_findings,
        lambda r: container(runtime(r))["env"].append({"name": "SHOAL_X", "value": "1"}),
        "nothing there reads",
    ),
    # lifetimes
    Mistake(
        "pool's grace",
        lifetime_findings,
        lambda r: pool(r).update(terminationGracePeriodSeconds=60),
        "too few for a drain",
    ),
    Mistake(
        "pool's grace unsaid",
        lifetime_findings,
        lambda r: pool(r).pop("terminationGracePeriodSeconds"),
        "gets 30 s to end",
    ),
    Mistake(
        "longer drain",
        lifetime_findings,
        lambda r: annotations(r).update({"shoal.dev/drain-timeout-s": "110"}),
        "drain of 110 s",
    ),
    Mistake(
        "drain unsaid",
        lifetime_findings,
        lambda r: annotations(r).pop("shoal.dev/drain-timeout-s"),
        "drain of 600 s",
    ),
    Mistake(
        "gateway's time",
        lifetime_findings,
        lambda r: gateway(r).update(timeoutSeconds=600, responseStartTimeoutSeconds=600),
        "a request may take 600 s",
    ),
    Mistake(
        "gateway's grace",
        lifetime_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_DRAIN_TIMEOUT_S").update(value="880"),
        "too few for a drain",
    ),
    Mistake(
        "gateway's drain",
        lifetime_findings,
        lambda r: variable(container(gateway(r)), "SHOAL_GATEWAY_DRAIN_TIMEOUT_S").update(value="60"),
        "less than the longest request",
    ),
    Mistake(
        "first byte",
        lifetime_findings,
        lambda r: gateway(r).update(responseStartTimeoutSeconds=300),
        "a request may take",
    ),
    Mistake("idle", lifetime_findings, lambda r: gateway(r).update(idleTimeoutSeconds=120), "would cut an answer"),
    Mistake(
        "long poll",
        lifetime_findings,
        lambda r: registry(r).update(responseStartTimeoutSeconds=30),
        "a request may take 60 s",
    ),
    Mistake(
        "wrong door",
        lifetime_findings,
        lambda r: container(gateway(r))["ports"][0].update(containerPort=8000),
        "the process listens on 8080",
    ),
    Mistake(
        "Knative's door",
        lifetime_findings,
        lambda r: (
            variable(container(registry(r)), "SHOAL_REGISTRY_PORT").update(value="8012"),
            container(registry(r))["ports"][0].update(containerPort=8012),
        ),
        "own sidecar",
    ),
    Mistake(
        "second port",
        lifetime_findings,
        lambda r: container(gateway(r))["ports"].append({"containerPort": 8445}),
        "takes one port",
    ),
    Mistake(
        "probe of nobody",
        lifetime_findings,
        lambda r: container(controller(r))["readinessProbe"]["httpGet"].update(port=8080),
        "where nobody listens",
    ),
    Mistake(
        "engine's liveness",
        lifetime_findings,
        lambda r: container(runtime(r)).update(livenessProbe={"httpGet": {"path": "/health", "port": 8080}}),
        "not the agent's judgement",
    ),
    Mistake(
        "no preStop",
        lifetime_findings,
        lambda r: container(runtime(r)).pop("lifecycle"),
        "does not ask the agent to drain",
    ),
    Mistake(
        "agent moved",
        lifetime_findings,
        lambda r: variable(container(runtime(r), AGENT), "SHOAL_REPLICA_AGENT_PORT").update(value="8481"),
        "not the agent's judgement",
    ),
    Mistake(
        "engine of IPv4 alone",
        lifetime_findings,
        lambda r: container(runtime(r))["args"].remove("--host=$(POD_IP)"),
        "whichever family",
    ),
    Mistake(
        "engine moved",
        lifetime_findings,
        lambda r: container(runtime(r))["args"].remove("--port=8080"),
        "does not listen on 8080",
    ),
    Mistake(
        "two paths",
        lifetime_findings,
        lambda r: container(runtime(r))["volumeMounts"][0].update(mountPath="/adapters"),
        "under one path",
    ),
    Mistake(
        "impatient startup",
        lifetime_findings,
        lambda r: container(runtime(r))["startupProbe"].update(failureThreshold=30),
        "gives up before",
    ),
]
