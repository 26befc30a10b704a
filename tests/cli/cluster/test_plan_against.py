"""`shoal plan --context` compares with what a cluster runs: its objects or the commit that it applied."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.api.kinds.inference_service import POOL_LABEL, VERSION_OF_LABEL
from functions.cli.cluster.access import ClusterChoice, KubeCluster
from functions.cli.cluster.declared import declared_objects
from functions.controller.kubernetes.objects import AUTOSCALER_MANAGER
from tests.cli.cluster.test_on_a_server import make
from tests.controller.kubernetes.crds import create_crds
from tests.controller.kubernetes.fixtures import TIMEOUT_S, Space, make_space
from tests.controller.kubernetes.run.rig import PLURALS, SHOAL, SHOAL_CRDS
from tests.fleets import git
from tests.simulator.plan.prepared import written

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]
SMALL = ("--requests", "60", "--seeds", "1", "--pool", "chat-8b", "-o", "json")


@pytest.fixture
def here(kserve_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Space:
    create_crds(kserve_server.client(), *sorted(SHOAL_CRDS.glob("*.yaml")))
    space = make_space(kserve_server)
    config = kserve_server.kubeconfig(kserve_server.admin_token, tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(config))
    return space


def apply(space: Space, folder: Path) -> None:
    """Apply everything that a fleet declares, as a user would."""
    for file in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            head = {"apiVersion": document["apiVersion"], "kind": document["kind"]}
            metadata = document["metadata"]
            if document["apiVersion"] == SHOAL:
                path = f"/apis/{SHOAL}/namespaces/{space.system}/{PLURALS[document['kind']]}"
            else:
                path = f"/apis/{document['apiVersion']}/namespaces/{space.models}/inferenceservices"
            make(space, path, metadata["name"], labels=metadata.get("labels"), spec=document["spec"], **head)


def plan(space: Space, folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {"SHOAL_STATE_DIR": str(folder.parent / "no-fleet")}
    where = ("--context", "-", "--namespace", space.system, "--models-namespace", space.models)
    command = [sys.executable, "-m", "functions.cli.main", "plan", str(folder), *where, *SMALL, *more]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_base_is_what_the_cluster_runs(here: Space, tmp_path: Path) -> None:
    fleet = written(tmp_path / "fleet")
    apply(here, fleet)
    same = plan(here, fleet)
    assert same.returncode == 0, same.stderr
    told = json.loads(same.stdout)
    assert told["base"].startswith("the objects at https://")
    assert told["changes"] == [], "what is applied is what is written"
    written(fleet, "tenant-added")
    changed = json.loads(plan(here, fleet).stdout)
    assert [each["verb"] for each in changed["changes"]] == ["added"], changed["changes"]
    git("init", "--quiet", "--initial-branch=main", str(fleet), at=tmp_path)
    git("add", "-A", at=fleet)
    git("-c", "user.name=op", "-c", "user.email=op@example.com", "commit", "--quiet", "-m", "a fleet", at=fleet)
    commit = git("rev-parse", "HEAD", at=fleet).stdout.strip()
    record = f"/api/v1/namespaces/{here.system}/configmaps"
    make(here, record, "shoal-controller", data={"lastAppliedRevision": f"main@{commit}"})
    from_git = json.loads(plan(here, fleet).stdout)
    assert (from_git["changes"], from_git["base"][-17:]) == ([], f"main@{commit[:12]}")
    body = {"data": {"lastAppliedRevision": f"main@{'0' * 40}"}}
    kind = "application/merge-patch+json"
    here.client.request("patch", f"{record}/shoal-controller", body=body, content_type=kind)
    assert "there is no revision '0000" in plan(here, fleet).stderr, "what it runs has to be at hand"


def test_what_the_controller_wrote_is_no_declaration(here: Space) -> None:
    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{here.models}/inferenceservices"
    head = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    spec = {"predictor": {"maxReplicas": 4, "model": {"modelFormat": {"name": "vLLM"}}}}
    make(here, path, "pool", labels={POOL_LABEL: "pool"}, spec=spec, **head)
    make(here, path, "somebodys", spec=spec, **head)
    make(here, path, "pool-v2-1a2b3c", labels={POOL_LABEL: "pool", VERSION_OF_LABEL: "pool"}, spec=spec, **head)
    number = {**head, "metadata": {"name": "pool"}, "spec": {"predictor": {"minReplicas": 3}}}
    here.client.request(
        "patch", f"{path}/pool", body=number, content_type="application/apply-patch+yaml",
        query_params=[("fieldManager", AUTOSCALER_MANAGER)],
    )  # fmt: skip
    (pool,) = declared_objects(KubeCluster(ClusterChoice(None, here.system, here.models)))
    assert pool["spec"]["predictor"] == spec["predictor"]
    assert set(pool["metadata"]) == {"name", "namespace", "labels"}
