"""Zones from Node labels reach a real registry, which returns a caller's own zone."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from functions.controller.kubernetes.api import KubeApi, ObjectListing
from functions.controller.kubernetes.errors import Terminal
from functions.controller.kubernetes.objects import Body, Kind
from functions.controller.kubernetes.run.zone_reporter import (
    GATEWAYS,
    NODE,
    POD,
    TELL_AGAIN_S,
    ZONE_LABEL,
    ZoneReporter,
)
from functions.controller.snapshot.registry_client import RegistryClient
from functions.fleet.zones import ZONES_PATH, ZoneTable
from tests.registry.rig import TOKEN, Rig, serving


class Cluster:
    """The two lists that the reporter reads."""

    def __init__(self) -> None:
        self.nodes: dict[str, str | None] = {"n1": "eu-1a", "n2": "eu-1b", "n3": None}
        self.pods: dict[str, str | None] = {"gateway-1": "n2", "gateway-pending": None}
        self.refusal: Exception | None = None

    def list(self, kind: Kind, namespace: str | None = None, *, label_selector: str | None = None) -> ObjectListing:
        if self.refusal is not None:
            raise self.refusal
        if kind == NODE:
            assert (namespace, label_selector) == (None, None)
            return ObjectListing(tuple(self._node(name, zone) for name, zone in self.nodes.items()), "1")
        assert (kind, namespace, label_selector) == (POD, "shoal", GATEWAYS)
        return ObjectListing(tuple(self._pod(name, node) for name, node in self.pods.items()), "1")

    def _node(self, name: str, zone: str | None) -> Body:
        return {"metadata": {"name": name, **({"labels": {ZONE_LABEL: zone}} if zone else {})}}

    def _pod(self, name: str, node: str | None) -> Body:
        return {"metadata": {"name": name}, "spec": {"nodeName": node} if node else {}}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as made:
        yield made


async def zone_of(rig: Rig, **asked: str) -> Any:
    answer = await rig.get(ZONES_PATH, **asked)
    assert answer.status_code == 200
    return answer.json()["zone"]


async def test_zone_labels_reach_callers_of_the_registry(rig: Rig) -> None:
    cluster = Cluster()
    reporter = ZoneReporter("shoal", RegistryClient(rig.client, rig.url, TOKEN), 15.0)
    assert await zone_of(rig, node="n1") == "", "nobody has told"
    await reporter.step(cast(KubeApi, cluster), 0.0)
    assert [await zone_of(rig, node=name) for name in ("n1", "n2", "n3", "n4")] == ["eu-1a", "eu-1b", "", ""]
    assert [await zone_of(rig, pod=name) for name in ("gateway-1", "gateway-pending")] == ["eu-1b", ""]
    cluster.pods["gateway-" + "long-" * 20] = "n1"
    cluster.nodes["n3"] = "eu-1c"
    await reporter.step(cast(KubeApi, cluster), 15.0)
    assert await zone_of(rig, node="n3") == "eu-1c"
    assert await zone_of(rig, pod=("gateway-" + "long-" * 20)[:62]) == "eu-1a", "by the name that its host has"


async def test_registry_that_lost_the_zones_gets_them_again(rig: Rig) -> None:
    reporter = ZoneReporter("shoal", RegistryClient(rig.client, rig.url, TOKEN), 15.0)
    await reporter.step(cast(KubeApi, Cluster()), 0.0)
    rig.fleet.zones = ZoneTable()
    await reporter.step(cast(KubeApi, Cluster()), TELL_AGAIN_S - 1.0)
    assert await zone_of(rig, node="n1") == "", "not with each look"
    await reporter.step(cast(KubeApi, Cluster()), TELL_AGAIN_S)
    assert await zone_of(rig, node="n1") == "eu-1a"


async def test_missing_right_for_nodes_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.refusal = Terminal("list v1 Node: forbidden")
    reporter = ZoneReporter("shoal", RegistryClient(rig.client, rig.url, TOKEN), 15.0)
    with caplog.at_level(logging.WARNING):
        for now_s in range(5):
            await reporter.step(cast(KubeApi, cluster), float(now_s))
        assert [record.message for record in caplog.records if "zones" in record.message] == [
            "zones are unknown, so routing does not prefer replicas of the same zone: list v1 Node: forbidden"
        ]
    cluster.refusal = None
    await reporter.step(cast(KubeApi, cluster), 6.0)
    assert await zone_of(rig, node="n1") == "eu-1a"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"zones": {"n1": "a zone"}}', b'{"zoness": {}}', b'{"nodes": {"": "n"}}']
)
async def test_invalid_zone_table_is_refused(rig: Rig, body: bytes) -> None:
    await rig.client.put(ZONES_PATH, content=msgspec.json.encode(ZoneTable({"n1": "eu-1a"})))
    answer = await rig.client.put(ZONES_PATH, content=body)
    assert answer.status_code == 400
    assert await zone_of(rig, node="n1") == "eu-1a", "what was told before stays"
