"""`shoal suspend`, `resume` and `reconcile` for a cluster, obeyed by a controller."""

import json
import re
from pathlib import Path

import pytest
import typer

from functions.cli.cluster import orders
from functions.cli.cluster.access import ClusterChoice
from functions.cli.cluster.status import status
from functions.cli.refused import CommandRefused
from tests.controller.kubernetes.run.rig import Rig, populate, settled, tenant_spec
from tests.controller.kubernetes.run.test_git_reconciler import Repository, applied, first_push, repository, start
from tests.controller.kubernetes.run.test_selection import written
from tests.controller.kubernetes.run.waiting import until

__all__ = ["repository"]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]


@pytest.fixture
def choice(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterChoice:
    server = rig.space.server
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(server.admin_token, tmp_path / "operators-kubeconfig")))
    return ClusterChoice(None, rig.space.system, rig.space.models)


def suspended(choice: ClusterChoice, capsys: pytest.CaptureFixture[str]) -> tuple[bool, str]:
    with pytest.raises(typer.Exit):  # the processes have no pods here
        status(choice, as_json=True)
    revision = json.loads(capsys.readouterr().out)["revision"]
    return revision["suspended"], revision["suspend_reason"]


def test_a_controller_obeys_the_commands(
    rig: Rig, choice: ClusterChoice, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandRefused, match="no controller has been leader"):
        orders.suspend(choice, "")
    populate(rig)
    controller = rig.controller()
    settled(rig, controller)
    orders.suspend(choice, "the store moves")
    capsys.readouterr()
    until(lambda: controller.metric("suspended") == 1)
    assert suspended(choice, capsys) == (True, "the store moves")
    rig.create("Tenant", "t7", tenant_spec(key="k7"))
    orders.reconcile(choice)
    assert re.search(r"kubernetes@\d+ is applied", capsys.readouterr().out)
    assert "t7" in rig.tenants(), "asked for, it looks once, also while suspended"
    assert controller.metric("suspended") == 1
    orders.resume(choice)
    capsys.readouterr()
    assert suspended(choice, capsys) == (False, "")
    until(lambda: controller.metric("suspended") == 0)
    controller.end()
    monkeypatch.setattr(orders, "TIMEOUT_S", 1.0)
    with pytest.raises(CommandRefused, match="no controller has handled the order within 1 s"):
        orders.reconcile(choice)


def test_push_result_is_printed(
    rig: Rig, choice: ClusterChoice, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    first = first_push(repository)
    start(rig, repository, GIT_POLL_S="3600")
    until(lambda: applied(rig) == f"main@{first}")
    second = repository.push("later", tier=written("QuotaPolicy", "free", {"weight": 2.0}))
    orders.reconcile(choice)
    assert f"main@{second} is applied" in capsys.readouterr().out
    bad = repository.push("a mistake", acme=written("Tenant", "acme", tenant_spec(tier="gold")))
    with pytest.raises(CommandRefused, match=rf"main@{bad} is refused: .*acme\.yaml.*spec\.tier"):
        orders.reconcile(choice)
