"""Configurations in memory, built from parts that tests vary."""

from functions.api.loader import Loaded, load_texts

HEX = "0123456789abcdef" * 4


def pool(name: str = "base", args: str = "--max-model-len=2048", bounds: str = "minReplicas: 1") -> str:
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}, labels: {{shoal.dev/pool: {name}}}}}
spec: {{predictor: {{{bounds}, model: {{modelFormat: {{name: vLLM}}, args: [{args}]}}}}}}
"""


def tenant(name: str, *key_ids: str, models: str = '["acme/*", base]', extra: str = "") -> str:
    keys = ", ".join(f'{{id: {key_id}, hmacSha256: "{HEX}"{extra}}}' for key_id in key_ids)
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {{name: {name}}}
spec: {{tier: standard, keys: [{keys}], models: {models}}}
"""


def lora(id_: str, *versions: str, channels: str = "{stable: v1}", pin: str = "") -> str:
    artifacts = ", ".join(f'{{name: {name}, artifact: "s3://shoal-models/{id_}/{name}"{pin}}}' for name in versions)
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: {id_.replace("/", ".")}}}
spec: {{id: {id_}, type: lora, base: base, versions: [{artifacts}], channels: {channels}}}
"""


def base(name: str = "base") -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  id: {name}
  type: base
  versions: [{{name: v1, artifact: "pvc://shoal-models/{name}"}}]
  channels: {{stable: v1}}
"""


def tier(name: str = "standard", spec: str = "{}") -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: QuotaPolicy
metadata: {{name: {name}}}
spec: {spec}
"""


def policies() -> str:
    """YAML of one object of each other kind, for the pools `base` and `other`."""
    return """\
apiVersion: shoal.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: llamas}
spec:
  pools: ["other*", base]
  session: {ttl: 60s}
  prefix: {source: sent}
  boundedLoad: 2
  spreadAbove: {utilization: 1}
  retry: {maxAttempts: 2, budget: 0.5}
  fallback: [{when: saturated, from: base, to: other, tiers: [standard]}]
---
apiVersion: shoal.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: default}
spec: {bands: {batch: {share: 0.25}, interactive: {share: 0.5, ttftSlo: 500ms}}, maxQueuedTokens: 9000}
---
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: default}
spec:
  stages: [{percent: 10, duration: 5m, autoHalt: ["error_rate  >  2%"]}, {percent: 100}]
  minRequests: 7
  falseAlarmRate: 0.5%
  sticky: tenant
---
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: base}
spec: {pool: base, replicas: {min: 1, max: 1}, warm: 1, scaleUp: ["kv_usage > 85% for 180s: +5%"]}
"""


def load(*documents: str) -> Loaded:
    """Load each document as a file `0.yaml`, `1.yaml` …. The tier `standard` is added unless a tier is given."""
    files = [(f"{number}.yaml", document.encode()) for number, document in enumerate(documents)]
    if not any("kind: QuotaPolicy" in document for document in documents):
        files.append(("tiers.yaml", tier().encode()))
    return load_texts(files)
