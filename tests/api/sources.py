"""Valid YAML of every kind, and ways to break one thing in it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from functions.api.loader import Loaded, load_texts
from functions.api.problems import ConfigInvalid, Problem

HEX = "0123456789abcdef" * 4
TENANTS = f"""\
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {{name: acme}}
spec:
  tier: enterprise
  keys:
    - id: ci
      hmacSha256: "{HEX}"
      scopes: [inference]
      maxClass: interactive
      expires: 2027-06-30
  models: ["acme/*", "smollm2-135m"]
  isolation: {{cacheSalt: per-tenant, pools: shared}}
---
apiVersion: shoal.dev/v1alpha1
kind: Tenant
metadata: {{name: globex}}
spec:
  tier: standard
  keys:
    - {{id: prod, hmacSha256: "{HEX}"}}
"""
MODELS = """\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {name: smollm2-135m}
spec:
  id: smollm2-135m
  type: base
  versions: [{name: v1, artifact: "pvc://shoal-models/smollm2-135m"}]
  channels: {stable: v1}
---
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {name: acme.support-bot}
spec:
  id: acme/support-bot
  type: lora
  base: smollm2-135m
  versions:
    - {name: v1, artifact: "s3://shoal-models/acme/support-bot/v1"}
    - {name: v2, artifact: "s3://shoal-models/acme/support-bot/v2"}
  channels: {stable: v1}
"""
POOLS = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: smollm
  labels: {shoal.dev/pool: smollm2-135m}
spec:
  predictor:
    minReplicas: 2
    maxReplicas: 4
    model:
      modelFormat: {name: vLLM}
      storageUri: pvc://shoal-models/smollm2-135m
      args: [--max-model-len=2048]
"""
POLICIES = """\
apiVersion: shoal.dev/v1alpha1
kind: QuotaPolicy
metadata: {name: enterprise}
spec:
  weight: 8
  limits: {requestsPerMinute: 6000, maxContextTokens: 131072, maxOutputTokens: 8192}
---
apiVersion: shoal.dev/v1alpha1
kind: QuotaPolicy
metadata: {name: standard}
spec: {}
---
apiVersion: shoal.dev/v1alpha1
kind: RoutingPolicy
metadata: {name: default}
spec:
  pools: ["*"]
  session: {ttl: 5m}
  prefix: {source: events}
  boundedLoad: 1.25
  spreadAbove: {utilization: 0.85}
  retry: {maxAttempts: 3, budget: 0.2}
  fallback: []
---
apiVersion: shoal.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: default}
spec:
  bands: {interactive: {share: 0.6, ttftSlo: 500ms}, near-real-time: {share: 0.3, ttftSlo: 2s}, batch: {share: 0.1}}
  maxQueuedTokens: 2000000
---
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: careful}
spec:
  stages:
    - {percent: 1, duration: 5m, autoHalt: ["error_rate > 2%", "p99_latency > 2x"]}
    - {percent: 50, duration: 30m, autoHalt: ["p99_ttft > 1.5x"]}
    - {percent: 100}
  minRequests: 50
---
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {name: smollm2-135m}
spec:
  pool: smollm2-135m
  replicas: {min: 2, max: 4}
  warm: 1
  scaleUp:
    - "p99_ttft > 1.2 * slo for 60s: +10%"
    - "queue_seconds > 0.5: +5%"
  scaleDown: ["utilization < 40% for 15m: -1"]
"""
FILES = {
    "policies/tenants.yaml": TENANTS,
    "registry/models.yaml": MODELS,
    "inferenceservices/smollm.yaml": POOLS,
    "policies/policies.yaml": POLICIES,
}
T, M, P, Q = FILES


ROOT = Path(__file__).parents[2]
FOLDERS = ("inferenceservices", "policies", "registry")


def demo_files() -> dict[str, str]:
    """Return the project's own files that `shoal up` reads: the top level of each folder."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).glob("*.yaml"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


def load(files: Mapping[str, str | bytes]) -> Loaded:
    return load_texts((name, it.encode() if isinstance(it, str) else it) for name, it in files.items())


def edited(file: str, old: str, new: str) -> dict[str, str]:
    assert FILES[file].count(old) == 1, f"{old!r} must occur once, so that the case edits what it means to"
    return {**FILES, file: FILES[file].replace(old, new)}


def problems_of(files: Mapping[str, str | bytes]) -> list[Problem]:
    with pytest.raises(ConfigInvalid) as caught:
        load(files)
    return list(caught.value.problems)
