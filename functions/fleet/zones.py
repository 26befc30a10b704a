"""Zones of nodes: reported by the controller, requested once by each gateway and agent at its start.

    controller    node labels `topology.kubernetes.io/zone`, and the nodes of the gateways' pods        ──► registry
    agent         knows its node by Kubernetes' downward API; requests the zone of the node             ──► registry
    gateway       knows only its pod's name, since Knative passes no node name; requests the pod's zone ──► registry

A pod stays on its node, so an answer is valid for the life of the process. Until there is one, or if no zones are
reported, a gateway has no zone preference and a replica reports no zone; nothing waits for it. The registry holds the
table in memory, and the controller sends it every minute.

Neighbours: `functions.controller.kubernetes.run.zone_reporter` reports, `functions.registry.fleet_routes` answers.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Literal

import httpx
import msgspec

from functions.decisions.health.backoff import BackoffPolicy, delay_s
from functions.fleet.role_credentials import Bearer, current_secret

ZONES_PATH = "/v1/fleet/zones"
ZONES_MAX_BYTES = 4 * 1024 * 1024  # for 20,000 nodes
_BACKOFF = BackoffPolicy(base_s=1.0, cap_s=300.0)
_TIMEOUT = httpx.Timeout(10.0)
_log = logging.getLogger(__name__)

ObjectName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Zone = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z0-9._-]*\Z")]
ZoneSubject = Literal["node", "pod"]


class ZoneTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Zones by node, and nodes by pod for pods that cannot know their node."""

    zones: dict[ObjectName, Zone] = {}
    nodes: dict[ObjectName, ObjectName] = {}

    def zone_of(self, node: str = "", pod: str = "") -> str:
        """Return the zone of a node or pod; empty if not known."""
        return self.zones.get(node or self.nodes.get(pod, ""), "")


class ZoneAnswer(msgspec.Struct, frozen=True):
    zone: Zone = ""


async def fetch_zone(
    client: httpx.AsyncClient,
    registry_url: str,
    token: Bearer,
    asked: tuple[ZoneSubject, str],
    take: Callable[[str], None],
) -> None:
    """Request the zone of a node or pod from the registry, with increasing pauses, until it is known; pass it to
    `take`, then return."""
    tries = 0
    while True:
        zone = await _request_zone(client, registry_url.rstrip("/") + ZONES_PATH, token, asked)
        if zone:
            _log.info("%s %s is in the zone %s", *asked, zone)
            take(zone)
            return
        tries += 1
        await asyncio.sleep(delay_s(tries, _BACKOFF))


async def _request_zone(client: httpx.AsyncClient, url: str, token: Bearer, asked: tuple[ZoneSubject, str]) -> str:
    try:
        answer = await client.get(
            url, params=dict([asked]), headers={"authorization": f"Bearer {current_secret(token)}"}, timeout=_TIMEOUT
        )
        return msgspec.json.decode(answer.content, type=ZoneAnswer).zone if answer.status_code == 200 else ""
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _log.debug("this process's zone is not known yet: %s", error)
        return ""
