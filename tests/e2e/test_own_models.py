"""A tenant's own full fine-tune on simulated engines: pushed, started from zero, rolled out, and scaled to zero again.

For another tenant, whose patterns match every model, it does not exist.

Answers begin with the mark of the weights that made them (`shoal_mark` of config.json).
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.artifacts.adapter_files import safetensors_bytes
from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(600)]

WIKI, TONE, POOL = "acme/wiki", "acme/wiki-tone", "acme.wiki"
MODELS, SERVICE, SCALING = "registry/models.yaml", "inferenceservices/acme-wiki.yaml", "policies/acme-wiki.yaml"
LIMIT_S = 180.0
IDLE_S = 10
DECLARED = """\
---
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: acme.wiki}}
spec:
  id: acme/wiki
  type: base
  versions:
{versions}
  channels: {{stable: {stable}}}
  rollout: at-once
---
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: acme.wiki-tone}}
spec:
  id: acme/wiki-tone
  type: lora
  base: acme.wiki
  versions: [{{name: v1, artifact: "s3://shoal-models/acme/support-bot/v1"}}]
  channels: {{stable: v1}}
"""
POLICY = f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: {POOL}}}
spec: {{pool: {POOL}, replicas: {{min: 0, max: 2}}, idleAfter: {IDLE_S}s, scaleUp: ["queue_seconds > 5: +1"]}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("own")
    everything = ("policies/tenants.yaml", '["globex/*", "smollm2-135m"]', '["*"]')
    one = ("inferenceservices/smollm2-135m.yaml", "minReplicas: 2", "minReplicas: 1")
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT, everything, one)))
    with running_fleet(folder / "state", "sim", None, project) as fleet:
        yield fleet


def weights(fleet: Fleet, version: str) -> Path:
    folder = fleet.state_dir.parent / f"wiki-{version}"
    shutil.copytree(fleet.state_dir / "models" / "sim" / "smollm2-135m", folder)
    (folder / "shoal-manifest.json").unlink()
    config = json.loads((folder / "config.json").read_text()) | {"shoal_mark": f"[wiki {version}]"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"model.norm.weight": ("F32", [1], bytes(4))}))
    return folder


def base_pushed(fleet: Fleet, version: str) -> dict[str, Any]:
    pushed = fleet.shoal("base", "push", f"{WIKI}@{version}", str(weights(fleet, version)), "-o", "json")
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    told: dict[str, Any] = json.loads(pushed.stdout)
    assert (told["model"], told["storage_uri"]) == (WIKI, f"shoal://{POOL}@{version}")
    return told


def declared(lines: list[str], stable: str) -> str:
    return DECLARED.format(versions="\n".join(f"    {line}" for line in lines), stable=stable)


def service(fleet: Fleet) -> str:
    """Return the demo's pool as acme's own pool, with a price."""
    text = fleet.read("inferenceservices/smollm2-135m.yaml")
    for old, new in (
        ("name: smollm2-135m", "name: acme-wiki"),
        ("shoal.dev/pool: smollm2-135m", f"shoal.dev/pool: {POOL}"),
        ("pvc://shoal-models/smollm2-135m", f"shoal://{POOL}@v1"),
        ("minReplicas: 1", "minReplicas: 0"),
        ("  annotations:\n", '  annotations:\n    shoal.dev/dedicated-to: acme\n'
         '    shoal.dev/accelerator-price-per-hour: "36"\n'),
    ):  # fmt: skip
        assert old in text, old
        text = text.replace(old, new)
    return text


def ask(fleet: Fleet, model: str, tenant: str = "acme") -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    with fleet.client(tenant, timeout_s=LIMIT_S) as client:
        return client.post("/chat/completions", json=body)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def listed(fleet: Fleet, tenant: str) -> dict[str, dict[str, Any]]:
    with fleet.client(tenant) as client:
        return {each["id"]: each for each in client.get("/models").json()["data"]}


def engines(fleet: Fleet) -> list[str]:
    return [
        name
        for name, entry in fleet.processes().items()
        if entry["role"] == "engine" and name.startswith(f"engine-{POOL}")
    ]


def refused(fleet: Fleet, model: str) -> tuple[int, str]:
    answer = ask(fleet, model, "globex")
    return answer.status_code, answer.json()["error"]["code"]


def test_from_a_push_to_its_second_version_and_back_to_zero(fleet: Fleet) -> None:
    first = base_pushed(fleet, "v1")
    models = fleet.read(MODELS)
    files: dict[str, str | bytes | None] = {
        MODELS: models + declared([first["line"]], "v1"), SERVICE: service(fleet), SCALING: POLICY,
    }  # fmt: skip
    pushed = fleet.push(files, "acme's own model")
    assert pushed.returncode == 0, pushed.stderr
    wait_until("it is listed to its tenant", lambda: WIKI in listed(fleet, "acme"), LIMIT_S)
    mine = listed(fleet, "acme")
    assert mine[WIKI]["capacity"] == {"ready": False, "replicas_ready": 0, "asleep": True}
    assert (mine[WIKI]["parent"], mine[TONE]["parent"]) == (None, WIKI)
    assert not {WIKI, TONE} & listed(fleet, "globex").keys()

    assert refused(fleet, WIKI) == refused(fleet, TONE) == refused(fleet, "acme/nobody") == (404, "model_not_found")
    assert refused(fleet, POOL) == (404, "model_not_found")
    assert engines(fleet) == [], "a stranger starts nothing"

    answer = ask(fleet, WIKI)
    assert text_of(answer).startswith("[wiki v1]")
    assert "x-shoal-wake" in answer.headers
    assert (answer.headers["x-shoal-model"], answer.headers["x-shoal-digest"]) == (f"{WIKI}@v1", first["digest"])
    assert engines(fleet) == [f"engine-{POOL}-0"]
    assert ask(fleet, TONE).headers["x-shoal-model"] == f"{TONE}@v1"

    second = base_pushed(fleet, "v2")
    text = models + declared([first["line"], second["line"]], "v2")
    assert fleet.push({MODELS: text}, "v2").returncode == 0
    seen: list[str] = []

    def is_second() -> bool:
        answer = ask(fleet, WIKI)
        mark = text_of(answer)[:9]
        version = answer.headers["x-shoal-model"].partition("@")[2]
        assert (
            mark == f"[wiki {version}]"
            and answer.headers["x-shoal-digest"] == (first if version == "v1" else second)["digest"]
        )
        seen.append(version)
        return version == "v2"

    wait_until("it is served", is_second, LIMIT_S, every_s=0.5)
    assert seen.count("v2") == 1 and set(seen[:-1]) <= {"v1"}, "v1 answers until v2 does"
    assert refused(fleet, WIKI) == (404, "model_not_found")

    wait_until("nobody asks, and it goes to zero", lambda: not engines(fleet), LIMIT_S, every_s=0.5)
    assert text_of(ask(fleet, WIKI)).startswith("[wiki v2]"), "and wakes as what it was"
    used = wait_for_usage(fleet)
    assert used["tenant"] == "acme" and used["cost"] > 0.0


def wait_for_usage(fleet: Fleet) -> dict[str, Any]:
    """Wait for acme's usage row of its own pool and return it."""
    rows: list[dict[str, Any]] = []

    def there() -> bool:
        told = fleet.shoal("usage", "--pool", POOL, "--model", WIKI, "-o", "json")
        rows[:] = json.loads(told.stdout)["data"] if told.returncode == 0 else []
        return bool(rows)

    wait_until("it is charged", there, 60.0, every_s=1.0)
    assert len(rows) == 1, rows
    return rows[0]
