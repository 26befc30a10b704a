"""Configurations of pools that share a model, for plans; engines are chosen by profile, so nothing is computed."""


def pool(
    name: str,
    *,
    model: str = "",
    dedicated_to: str = "",
    spot: bool = False,
    reads_gigabits_per_s: float = 0.0,
    replicas: int = 1,
    window: int = 8_192,
) -> str:
    labels = {"shoal.dev/pool": name} | ({"shoal.dev/model": model} if model else {})
    annotations = {"shoal.dev/simulator-profile": "h100-8b"}
    annotations |= {"shoal.dev/dedicated-to": dedicated_to} if dedicated_to else {}
    annotations |= {"shoal.dev/capacity": "spot"} if spot else {}
    if reads_gigabits_per_s:  # how fast a prefill pool sends KV blocks to the answering pool
        labels |= {"shoal.dev/role": "prefill"}
        annotations |= {"shoal.dev/kv-bytes-per-token": "131072"}
        annotations |= {"shoal.dev/kv-transfer-gigabits-per-s": f"{reads_gigabits_per_s:g}"}
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}, labels: {_flow(labels)}, annotations: {_flow(annotations)}}}
spec:
  predictor:
    minReplicas: {replicas}
    maxReplicas: {max(1, replicas)}
    model: {{modelFormat: {{name: vLLM}}, storageUri: "pvc://models/m", args: [--max-model-len={window}]}}
"""


def routing(*rules: str) -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: m}}
spec: {{pools: [m], placement: [{", ".join(rules)}]}}
"""


def prefill_policy(least_prompt_tokens: int) -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: m}}
spec: {{pools: [m], prefill: {{minPromptTokens: {least_prompt_tokens}}}}}
"""


def tenant(name: str, tier: str, pools: str = "shared") -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {{name: {name}}}
spec: {{tier: {tier}, models: ["*"], isolation: {{pools: {pools}}}}}
"""


def _flow(mapping: dict[str, str]) -> str:
    return "{" + ", ".join(f'{key}: "{value}"' for key, value in mapping.items()) + "}"
