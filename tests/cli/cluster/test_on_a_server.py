"""Commands for a cluster, through a real API server."""

import base64
import json
from pathlib import Path

import pytest
import typer

from functions.cli.cluster.access import ClusterChoice
from functions.cli.cluster.secrets import secrets
from functions.cli.refused import Refused
from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import TIMEOUT_S, Space, make_space

pytestmark = [pytest.mark.servers, pytest.mark.timeout(TIMEOUT_S)]
S3 = '{"access_key_id": "a", "secret_access_key": "b"}\n'


@pytest.fixture
def here(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Space:
    """Namespaces of this test's own, and a kubeconfig for them."""
    space = make_space(api_server)
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(api_server.admin_token, tmp_path / "kubeconfig")))
    return space


def choice(space: Space, context: str | None = None) -> ClusterChoice:
    return ClusterChoice(context, space.system, space.models)


def kept(space: Space, namespace: str) -> dict[str, dict[str, str]]:
    found = space.client.request("get", f"/api/v1/namespaces/{namespace}/secrets", serializer=lambda _c, data: data)
    return {each["metadata"]["name"]: each["data"] for each in found["items"]}


def test_secrets_are_made_once(here: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {}
    for word in ("read-s3", "registry-s3", "gateway-s3"):
        files[word] = tmp_path / word
        files[word].write_text(S3)
    with pytest.raises(typer.Exit):
        secrets(choice(here), files, dry_run=True, as_json=True)
    assert kept(here, here.system) == {}
    with pytest.raises(typer.Exit):
        secrets(choice(here), files, dry_run=False, as_json=False)
    told = capsys.readouterr().out
    assert "give it with --database-password FILE" in told
    assert "keep a copy of the pepper outside of the cluster" in told
    first = kept(here, here.system)
    password = files["database-password"] = tmp_path / "password"
    password.write_text("secret\n")
    secrets(choice(here), files, dry_run=False, as_json=True)
    did = {(row["namespace"], row["name"]): row["do"] for row in json.loads(capsys.readouterr().out)["secrets"]}
    assert did.pop((here.system, "shoal-registry-database")) == "give"
    assert set(did.values()) == {"keep"}
    now = kept(here, here.system)
    assert {name: now[name] for name in first} == first, "what exists is kept"
    assert base64.b64decode(now["shoal-registry-database"]["password"]) == b"secret"
    models = kept(here, here.models)
    for name in ("shoal-internal-token", "shoal-bus-password", "shoal-s3"):
        assert models[name] == now[name]
    assert base64.b64decode(now["shoal-s3"]["s3.json"]) == S3.strip().encode()
    assert "shoal-pepper" not in models


def test_what_is_no_way_to_a_cluster_is_said(here: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="no way to a cluster"):
        secrets(choice(here, "nowhere"), {}, dry_run=True, as_json=False)
    wrong = tmp_path / "s3.json"
    wrong.write_text("{}")
    with pytest.raises(Refused, match="access_key_id"):
        secrets(choice(here), {"read-s3": wrong}, dry_run=True, as_json=False)
    monkeypatch.setenv("KUBECONFIG", str(here.server.kubeconfig("not-a-token", tmp_path / "other")))
    with pytest.raises(Refused, match="Unauthorized"):
        secrets(choice(here), {}, dry_run=True, as_json=False)


def test_a_namespace_that_is_not_there_is_said(here: Space, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not there: is the namespace"):
        secrets(ClusterChoice(None, "no-such", here.models), {}, dry_run=False, as_json=False)
