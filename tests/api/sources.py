"""Sound YAML of every kind, and ways to break one thing in it."""

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
FILES = {"policies/tenants.yaml": TENANTS, "registry/models.yaml": MODELS, "inferenceservices/smollm.yaml": POOLS}
T, M, P = FILES


def load(files: dict[str, str]) -> Loaded:
    return load_texts((name, text.encode()) for name, text in files.items())


def edited(file: str, old: str, new: str) -> dict[str, str]:
    assert FILES[file].count(old) == 1, f"{old!r} must occur once, so that the case edits what it means to"
    return {**FILES, file: FILES[file].replace(old, new)}


def problems_of(files: dict[str, str]) -> list[Problem]:
    with pytest.raises(ConfigInvalid) as caught:
        load(files)
    return list(caught.value.problems)
