"""Missing parts of a real gateway, reported over a real bus and registry, appear on objects of a real API server."""

from pathlib import Path

import pytest

from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import make_space
from tests.controller.kubernetes.run.rig import TOKEN, installation, populate, settled, tenant_spec
from tests.controller.kubernetes.run.waiting import until
from tests.gateway.certificates import self_signed
from tests.gateway.processes import GatewayProcess, valkey

pytestmark = [pytest.mark.servers, pytest.mark.soak, pytest.mark.timeout(400)]

TOOL = {"name": "weather", "url": "https://tools.example.com/weather", "secret": "weather-token"}


def test_missing_tokenizer_and_secret_appear_on_policy_and_tenant(shoal_server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "gateway" / "secrets").mkdir(parents=True)
    with valkey(tmp_path) as bus_url, installation(make_space(shoal_server), tmp_path, bus_url=bus_url) as rig:
        populate(rig)
        rig.create("RoutingPolicy", "default", {"pools": ["*"], "prefix": {"source": "events"}})
        rig.create("Tenant", "tooled", {**tenant_spec(key="kt"), "tools": [TOOL]})
        controller = rig.controller(SCALING_INTERVAL_S="1")
        settled(rig, controller)
        assert "Obeyed" not in rig.conditions("RoutingPolicy", "default"), "nobody has said anything yet"
        gateway = GatewayProcess(
            tmp_path / "gateway", bus_url, self_signed(tmp_path), registry_url=rig.registry_url,
            more={"TOOL_SECRETS_DIR": str(tmp_path / "gateway" / "secrets")},
        )  # fmt: skip
        (gateway.folder / "token").write_text(TOKEN)
        (gateway.folder / "snapshot.json").unlink()
        with gateway.start():
            until(lambda: "Obeyed" in rig.conditions("RoutingPolicy", "default"), controller.log + gateway.log())
            until(lambda: "Obeyed" in rig.conditions("Tenant", "tooled"), controller.log + gateway.log())
            policy, tenant = rig.conditions("RoutingPolicy", "default"), rig.conditions("Tenant", "tooled")
            assert policy["Obeyed"]["reason"] == "TokenizerMissing"
            assert "gateways have no tokenizer for base-a" in policy["Obeyed"]["message"]
            assert tenant["Obeyed"]["reason"] == "ToolSecretMissing"
            assert controller.metric("policies_not_obeyed", kind="Tenant", reason="ToolSecretMissing") == 1
            (tmp_path / "gateway" / "secrets" / "tooled").mkdir()
            (tmp_path / "gateway" / "secrets" / "tooled" / "weather-token").write_text("t0ken")
            until(lambda: rig.conditions("Tenant", "tooled")["Obeyed"]["status"] == "True", controller.log)
            assert rig.conditions("RoutingPolicy", "default")["Obeyed"]["status"] == "False"
            until(lambda: {"NotObeyed", "ObeyedAgain"} <= rig.events("tooled").keys(), controller.log)
