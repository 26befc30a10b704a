"""Configurations in memory, from parts that tests vary."""

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


def load(*documents: str) -> Loaded:
    """Each document a file of its own: `0.yaml`, `1.yaml` …"""
    return load_texts((f"{number}.yaml", document.encode()) for number, document in enumerate(documents))
