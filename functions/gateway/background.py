"""Background tasks of a gateway: feeds that it follows, state that it publishes, and the final publication at
shutdown.

Neighbours: `server` starts them before the first request and ends them after the last one; `feeds` has the loops.
"""

import asyncio
import functools
import logging
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from functions.decisions.catalogue import Catalogue
from functions.fleet import zones
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import HEARTBEAT_INTERVAL_S
from functions.fleet.heartbeat_seals import SealChecker, is_one_machine, networks_of
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.snapshot_notices import follow_notices
from functions.fleet.snapshots import SnapshotFollower, SnapshotRefused, SnapshotSourceUnavailable
from functions.fleet.valkey_bus import ValkeyBus
from functions.gateway import configured, feeds, memory
from functions.gateway.gateway import Gateway
from functions.gateway.prefix.metrics import ExactPrefixStats
from functions.gateway.quota import gateway_count
from functions.gateway.quota.leases import QuotaLeases
from functions.gateway.settings import GatewaySettings
from functions.gateway.usage.delivery import NotDelivered, UsageDelivery
from functions.telemetry.memory import limit_bytes, warn_if_over

if TYPE_CHECKING:
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes

_log = logging.getLogger(__name__)
_LAST_WORDS_S = 2.0
_FIRST_HEARTBEATS_S = 2.5 * HEARTBEAT_INTERVAL_S  # every replica has sent two heartbeats by then
_KEPT_MESSAGES_S = 10.0  # a busy fleet's sessions are read in less than one second


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    settings: GatewaySettings
    gateway: Gateway
    bus: ValkeyBus
    credentials: RoleCredentials
    exact: "ExactPrefixes | None"
    quota_leases: QuotaLeases
    gateways_file: Path
    usage: UsageDelivery

    def start(self) -> None:
        gateway, services, settings = self.gateway, self.gateway.services, self.settings
        follower = SnapshotFollower(
            client=httpx.AsyncClient(verify=configured.registry_trust(settings), timeout=40.0),
            registry_url=settings.registry_url,
            token=functools.partial(self.credentials.bearer, "follow"),
            cache_file=settings.snapshot_cache_file,
            on_swap=functools.partial(self._use_snapshot, [1]),
            gateway_id=services.gateway_id,
            on_gateways=self.quota_leases.expect,
        )
        follower.load_cached()
        services.state.snapshot_source = follower
        services.state.fleet_unheard_until_s = services.clock() + _FIRST_HEARTBEATS_S
        services.state.unread = {"heartbeats", "pins", "session homes"}
        services.state.unread_until_s = services.clock() + _KEPT_MESSAGES_S
        bus = self.bus
        if not settings.zone:
            services.tasks.once("zone", self._learn_zone())
        services.tasks.forever("snapshot", follower.run, expected=(SnapshotSourceUnavailable, SnapshotRefused))
        notices = functools.partial(follow_notices, bus, follower.handle_notice)
        seals = SealChecker(
            self.credentials,
            required=settings.sealed_heartbeats,
            loopback=is_one_machine(settings.bus_url),
            pod_networks=networks_of(settings.pod_cidrs),
        )
        services.tasks.forever("snapshot notices", notices, expected=(BusUnavailable,))
        services.tasks.forever("bus", functools.partial(feeds.follow_bus, gateway, bus, seals))
        self._start_rollout_feeds()
        self._start_prefix_feeds()
        tokenizers = self.exact.tokenizers if self.exact is not None else None
        needs = functools.partial(feeds.publish_needs, services, bus, tokenizers, settings.tool_secrets_dir)
        services.tasks.forever("needs", needs, expected=(BusUnavailable,))
        services.tasks.forever("quota leases", self.quota_leases.run)
        keep = functools.partial(gateway_count.save_changes, self.quota_leases, self.gateways_file)
        services.tasks.forever("number of gateways", keep)
        services.tasks.forever("usage to disk", self.usage.write_often)
        services.tasks.forever("usage", self.usage.deliver_often, expected=(NotDelivered,))
        services.tasks.forever("sweep", functools.partial(feeds.sweep, gateway))

    def _use_snapshot(self, summed: list[int], catalogue: Catalogue) -> None:
        """Put a new snapshot in use; if it has more `generate` pools than any before, check the memory limit again."""
        self.gateway.swap(catalogue)
        pools = sum(entry.task == "generate" for entry in catalogue.pools.values())
        if pools > summed[0]:
            summed[0] = pools
            warn_if_over(memory.maximum_parts(self.settings, pools), limit_bytes())

    def _start_prefix_feeds(self) -> None:
        exact, tasks = self.exact, self.gateway.services.tasks
        if exact is None:
            return
        exact.start(asyncio.get_running_loop().call_soon_threadsafe)
        self.gateway.services.metrics.registry.register(ExactPrefixStats(exact))
        follow = functools.partial(feeds.follow_prefixes, exact, self.bus)
        ask = functools.partial(feeds.request_prefixes, self.gateway.services, exact, self.bus)
        tasks.forever("prefixes", follow, expected=(BusUnavailable,))
        tasks.forever("asking for prefixes", ask, expected=(BusUnavailable,))
        tasks.forever("tokenizers", functools.partial(feeds.follow_tokenizers, self.gateway.services, exact))
        tasks.forever("prefix sweep", functools.partial(feeds.sweep_prefixes, exact, self.gateway.services.clock))

    def _start_rollout_feeds(self) -> None:
        for name, feed in (
            ("evidence", feeds.publish_evidence),
            ("pools", feeds.publish_pools),
            ("demand", feeds.publish_demand),
            ("own pins", feeds.publish_pins),
            ("pins", feeds.follow_pins),
            ("own session homes", feeds.publish_homes),
            ("session homes", feeds.follow_homes),
            ("nodes", feeds.follow_nodes),
        ):
            self.gateway.services.tasks.forever(
                name, functools.partial(feed, self.gateway.services, self.bus), expected=(BusUnavailable,)
            )

    async def _learn_zone(self) -> None:
        """Fetch the zone from the registry by the pod's host name and set it in the router.

        Knative passes no node name to the pod.
        """
        settings = self.settings
        token = functools.partial(self.credentials.bearer, "follow")
        pod: tuple[zones.ZoneSubject, str] = ("pod", socket.gethostname())
        async with httpx.AsyncClient(verify=configured.registry_trust(settings), trust_env=False) as client:
            await zones.fetch_zone(client, settings.registry_url, token, pod, self.gateway.services.router.set_zone)

    async def publish_last_state(self) -> None:
        """Publish the last rollout evidence, session pins and session homes, and close the bus.

        A failure or a timeout is only logged.
        """
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await feeds.publish_evidence_once(self.gateway.services, self.bus)
                await feeds.publish_pins_once(self.gateway.services, self.bus)
                await feeds.publish_homes_once(self.gateway.services, self.bus)
                await self.bus.close()
        except (BusUnavailable, TimeoutError) as error:
            _log.warning("the last evidence, pins and session homes could not be published: %s", error)
