"""Zones for gateways and agents: the leading controller reads them from Node labels and sends them to the registry.

Only names, labels and node names are used of what is read. Listing nodes needs a permission beyond our namespaces.
Without it, that is logged once and zones stay unknown.

Neighbours: `functions.fleet.zones` has the table and its readers.
"""

import asyncio
import logging

import msgspec

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict, Gone, KindMissing, Retryable, Terminal
from functions.controller.kubernetes.objects import Kind, mapping_at
from functions.controller.snapshot.registry_client import (
    EpochConflict,
    RegistryClient,
    RegistryRefused,
    RegistryUnavailable,
)
from functions.fleet.zones import ZONES_MAX_BYTES, ZONES_PATH, ZoneTable

NODE = Kind("v1", "Node")
POD = Kind("v1", "Pod")
ZONE_LABEL = "topology.kubernetes.io/zone"
GATEWAYS = "app.kubernetes.io/name=gateway,app.kubernetes.io/part-of=shoal"
_HOSTNAME_MAX_CHARS = 63
TELL_AGAIN_S = 60.0  # a restarted registry has no zones

_log = logging.getLogger(__name__)


class ZoneReporter:
    """Zone reporter of one term, owned by one event loop."""

    def __init__(self, namespace: str, registry: RegistryClient, interval_s: float) -> None:
        self._namespace = namespace
        self._registry = registry
        self._interval_s = interval_s
        self._told: ZoneTable | None = None
        self._told_s = 0.0
        self._said = ""

    async def run(self, api: KubeApi) -> None:
        while True:
            try:
                await self.step(api, asyncio.get_running_loop().time())
            except Exception:  # a preference must not end the term
                _log.exception("unexpected error in a pass over the zones")
            await asyncio.sleep(self._interval_s)

    async def step(self, api: KubeApi, now_s: float) -> None:
        """Read the zones, and send them to the registry if they changed or TELL_AGAIN_S have passed since they were
        sent. Failures are logged."""
        try:
            table = await asyncio.to_thread(self._read, api)
            if table != self._told or now_s - self._told_s >= TELL_AGAIN_S:
                await self._send_table(table)
                self._told, self._told_s = table, now_s
            self._log_trouble("")
        except (Retryable, Conflict, Terminal, KindMissing, Gone) as error:
            self._log_trouble(f"zones are unknown, so routing does not prefer replicas of the same zone: {error}")
        except (RegistryUnavailable, RegistryRefused, EpochConflict) as error:
            self._log_trouble(f"zones cannot be sent to the registry: {error}")

    def _read(self, api: KubeApi) -> ZoneTable:
        zones = {
            node["metadata"]["name"]: zone
            for node in api.list(NODE).items
            if (zone := mapping_at(node, "metadata", "labels").get(ZONE_LABEL))
        }
        pods = api.list(POD, self._namespace, label_selector=GATEWAYS).items
        nodes = {
            _hostname(pod["metadata"]["name"]): pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")
        }
        return ZoneTable(zones, nodes)

    async def _send_table(self, table: ZoneTable) -> None:
        content = msgspec.json.encode(table)
        if len(content) > ZONES_MAX_BYTES:
            raise RegistryRefused(f"the table of {len(table.zones)} nodes is over {ZONES_MAX_BYTES} bytes")
        await self._registry.send("PUT", ZONES_PATH, content=content)

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            _log.warning("%s", trouble)
        self._said = trouble


def _hostname(pod: str) -> str:
    """Return the host name of a pod of that name, which is all that the gateway in it knows."""
    return pod[:_HOSTNAME_MAX_CHARS].rstrip("-.")
