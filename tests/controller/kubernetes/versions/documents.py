"""YAML of one pool `a` whose base has several versions."""

STAGES = """\
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: NAME}
spec: {stages: [{percent: 10, duration: 1m}, {percent: 100}]}
"""
SCALED = """\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: a}
spec: {pool: a, replicas: {min: 2, max: 6}}
"""


def service(
    *,
    uri: str = "shoal://a@v1",
    autoscaler: str = "none",
    mode: str = "Standard",
    more: str = "",
    replicas: int = 2,
    args: str = "--max-model-len=2048",
) -> str:
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: a
  labels: {{shoal.dev/pool: a}}
  annotations: {{serving.kserve.io/deploymentMode: {mode}, serving.kserve.io/autoscalerClass: {autoscaler}}}
spec:
  predictor:
    {{minReplicas: {replicas}, maxReplicas: 8, {more}model: {{modelFormat: {{name: vLLM}}, storageUri: "{uri}",
    args: [{args}]}}}}
"""


def base(*versions: str, stable: str = "v1", artifact: str = "s3://shoal-models/bases/a/{}") -> str:
    listed = ", ".join(f"{{name: {name}, artifact: '{artifact.format(name)}'}}" for name in versions)
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: a}}
spec: {{id: a, type: base, versions: [{listed}], channels: {{stable: {stable}}}, rollout: careful}}
"""


CAREFUL = STAGES.replace("NAME", "careful")
