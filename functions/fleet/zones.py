"""Zones of nodes: told by the controller, asked for once by each gateway and each agent that starts.

    controller    Node labels `topology.kubernetes.io/zone`, and on which nodes the gateways' pods are ──► registry
    agent         knows its node by Kubernetes' downward API                     ──► registry: which zone is that in?
    gateway       knows only its pod's name: Knative lets no node's name through ──► the same

A pod stays where it is, so an answer holds for the life of whoever asked. Until there is one, and wherever nobody tells
zones, a gateway has no preference and a replica none to offer; nothing waits. The registry keeps the table in memory:
the controller tells it anew each minute.

Neighbours: `functions.controller.kubernetes.run.zone_reporter` tells, `functions.registry.fleet_routes` answers.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Literal

import httpx
import msgspec

from functions.decisions.health.backoff import BackoffPolicy, delay_s
from functions.fleet.role_credentials import Bearer, now

ZONES_PATH = "/v1/fleet/zones"
ZONES_MAX_BYTES = 4 * 1024 * 1024  # of 20,000 nodes
_BACKOFF = BackoffPolicy(base_s=1.0, cap_s=300.0)
_TIMEOUT = httpx.Timeout(10.0)
_log = logging.getLogger(__name__)

ObjectName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Zone = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z0-9._-]*\Z")]
ZoneSubject = Literal["node", "pod"]


class ZoneTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Zones by node, and nodes by pod for those pods that cannot know theirs."""

    zones: dict[ObjectName, Zone] = {}
    nodes: dict[ObjectName, ObjectName] = {}

    def zone_of(self, node: str = "", pod: str = "") -> str:
        """Empty where it is not known."""
        return self.zones.get(node or self.nodes.get(pod, ""), "")


class ZoneAnswer(msgspec.Struct, frozen=True):
    zone: Zone = ""


async def learn(
    client: httpx.AsyncClient,
    registry_url: str,
    token: Bearer,
    asked: tuple[ZoneSubject, str],
    take: Callable[[str], None],
) -> None:
    """Ask until there is an answer, less and less often, and hand it over; then end."""
    tries = 0
    while True:
        zone = await _ask(client, registry_url.rstrip("/") + ZONES_PATH, token, asked)
        if zone:
            _log.info("%s %s is in the zone %s", *asked, zone)
            take(zone)
            return
        tries += 1
        await asyncio.sleep(delay_s(tries, _BACKOFF))


async def _ask(client: httpx.AsyncClient, url: str, token: Bearer, asked: tuple[ZoneSubject, str]) -> str:
    try:
        answer = await client.get(
            url, params=dict([asked]), headers={"authorization": f"Bearer {now(token)}"}, timeout=_TIMEOUT
        )
        return msgspec.json.decode(answer.content, type=ZoneAnswer).zone if answer.status_code == 200 else ""
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _log.debug("the own zone is not known yet: %s", error)
        return ""
