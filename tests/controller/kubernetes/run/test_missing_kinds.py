"""A cluster without shoal's kinds: the controller waits, reports it, and publishes nothing meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.crds import INFERENCE_SERVICE, create_crds, delete_crd
from tests.controller.kubernetes.fixtures import foreign_crds, kube_assets, make_space
from tests.controller.kubernetes.run.rig import SHOAL_CRDS, Rig, installation, populate, settled
from tests.controller.kubernetes.run.waiting import until

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(400)]


@pytest.fixture
def bare_rig(tmp_path: Path) -> Iterator[Rig]:
    """An API server of the test's own: it installs and removes kinds, which no shared server may see."""
    server = ApiServer.start(tmp_path / "server", kube_assets())
    try:
        with installation(make_space(server), tmp_path) as rig:
            yield rig
    finally:
        server.close()


def readiness(url: str) -> httpx.Response:
    return httpx.get(f"{url}/readyz", timeout=30)


def test_controller_waits_for_late_kinds_and_survives_a_removed_one(bare_rig: Rig) -> None:
    client = bare_rig.space.client
    controller = bare_rig.controller()
    until(lambda: "Tenant (shoal.dev/v1alpha1) is not installed" in readiness(controller.url).text)
    assert readiness(controller.url).status_code == 503
    assert httpx.get(f"{controller.url}/healthz", timeout=30).status_code == 200, "waiting is no failure"
    create_crds(client, foreign_crds() / INFERENCE_SERVICE, *sorted(SHOAL_CRDS.glob("*.yaml")))
    populate(bare_rig)
    settled(bare_rig, controller)
    assert bare_rig.tenants() == ["t0", "t1"]
    assert readiness(controller.url).status_code == 200
    delete_crd(client, "routingpolicies.shoal.dev")
    until(lambda: "RoutingPolicy" in readiness(controller.url).text, "it is told")
    waited = controller.metric("reconciles_total", result="waiting")  # at the start, not everything was known either
    bare_rig.delete("Tenant", "t1")
    until(lambda: bare_rig.get("Tenant", "t1") is None)
    until(lambda: controller.metric("reconciles_total", result="waiting") > waited)
    assert "nothing is published before every kind is listed" in controller.log
    assert bare_rig.tenants() == ["t0", "t1"], "what is not known is not taken for empty"
    create_crds(client, SHOAL_CRDS / "shoal.dev_routingpolicies.yaml")
    until(lambda: bare_rig.tenants() == ["t0"], "and it goes on when the kind is back")
