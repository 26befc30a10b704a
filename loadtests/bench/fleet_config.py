"""A configuration of the size that the control plane supports: 10,000 models, 50,000 tenants with 2 keys, 20 pools.

Each file has 250 tenants or 100 models.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

TENANTS_A_FILE, MODELS_A_FILE = 250, 100
POOLS, MODELS, TENANTS = 20, 10_000, 50_000

_TIER = """\
apiVersion: shoal.dev/v1alpha1
kind: QuotaPolicy
metadata: {name: standard}
spec: {weight: 2, limits: {requestsPerMinute: 6000, outputTokensPerMinute: 500000}}
"""


def tenant(number: int, tier: str = "standard") -> str:
    keys = ", ".join(f'{{id: t{number:05d}-{which}, hmacSha256: "{_hex(number, which)}"}}' for which in ("a", "b"))
    return (
        "apiVersion: shoal.dev/v1alpha1\nkind: Tenant\n"
        f"metadata: {{name: tenant-{number:05d}}}\n"
        f'spec: {{tier: {tier}, keys: [{keys}], models: ["tenant-{number:05d}/*", {_pool(number)}]}}\n'
    )


def files(models: int = MODELS, tenants: int = TENANTS) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file."""
    yield "policies/quotas.yaml", _TIER
    yield "inferenceservices/pools.yaml", "---\n".join(_service(number) for number in range(POOLS))
    for start in range(0, tenants, TENANTS_A_FILE):
        numbers = range(start, min(start + TENANTS_A_FILE, tenants))
        yield f"policies/tenants-{start:05d}.yaml", "---\n".join(tenant(number) for number in numbers)
    for start in range(0, models, MODELS_A_FILE):
        numbers = range(start, min(start + MODELS_A_FILE, models))
        yield f"registry/models-{start:05d}.yaml", "---\n".join(_model(number) for number in numbers)


def write(folder: Path, models: int = MODELS, tenants: int = TENANTS) -> int:
    """Write all files below `folder` and return the number of bytes."""
    size_bytes = 0
    for name, text in files(models, tenants):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size_bytes += path.write_text(text) and len(text)
    return size_bytes


def _model(number: int) -> str:
    name = f"tenant-{number:05d}/bot"
    versions = ", ".join(
        f'{{name: {version}, artifact: "s3://shoal-models/{name}/{version}", digest: "sha256:{_hex(number, version)}"}}'
        for version in ("v1", "v2")
    )
    return (
        "apiVersion: shoal.dev/v1alpha1\nkind: Model\n"
        f"metadata: {{name: tenant-{number:05d}.bot}}\n"
        f"spec: {{id: {name}, base: {_pool(number)}, type: lora, versions: [{versions}], channels: {{stable: v1}}}}\n"
    )


def _service(number: int) -> str:
    name = _pool(number)
    return (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n"
        f"metadata: {{name: {name}, labels: {{shoal.dev/pool: {name}}}}}\n"
        f"spec: {{predictor: {{minReplicas: 2, maxReplicas: 8, model: {{modelFormat: {{name: vLLM}}, "
        f"args: [--max-model-len=8192, --enable-lora, --max-loras=8]}}}}}}\n"
    )


def _pool(number: int) -> str:
    return f"base-{number % POOLS:02d}"


def _hex(number: int, salt: str) -> str:
    return hashlib.sha256(f"{number} {salt}".encode()).hexdigest()
