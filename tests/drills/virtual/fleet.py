"""A whole fleet in one process and virtual time, and the run of one seed.

seconds 0 .. TROUBLE_S     clients arrive and leave, faults occur, a rollout runs
then                       everything heals; requests under way end
then                       each gateway gets probes and must answer: nothing is broken for good
at last                    no client for QUIET_S: nothing may be left over
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from functions.decisions.catalogue import Catalogue
from tests.drills.virtual.bills import Bills
from tests.drills.virtual.bus import BusServer
from tests.drills.virtual.clients import Client, Outcome, RequestPlan
from tests.drills.virtual.faults import Fault, draw_faults
from tests.drills.virtual.gateway_node import GatewayNode
from tests.drills.virtual.loop import VirtualLoop
from tests.drills.virtual.pipes import Network
from tests.drills.virtual.platform import ADAPTERS, SPARE, Policy, catalogue, draw_policy
from tests.drills.virtual.replica_node import Replica, engine_settings
from tests.drills.virtual.witness import Witness
from tests.gateway.rig import POOL

TROUBLE_S = 20.0
QUIET_S = 10.0
_PROBES, _PROBE_PAUSE_S = 12, 6.0


@dataclass
class Fleet:
    """All nodes of one run."""

    seed: str
    folder: Path
    adapters: dict[str, Path]
    loop: VirtualLoop
    outcomes: list[Outcome] = field(default_factory=list)
    probes: list[Outcome] = field(default_factory=list)
    gateways: list[GatewayNode] = field(default_factory=list)  # serving or about to; by place
    retired: list[GatewayNode] = field(default_factory=list)
    crashed: list[GatewayNode] = field(default_factory=list)
    replicas: dict[str, Replica] = field(default_factory=dict)
    bus_was_troubled: bool = False
    snapshots_from_s: float = 0.0

    def __post_init__(self) -> None:
        rng = self.rng = Random(f"{self.seed}/fleet")
        self.network = Network(self.loop, self.seed)
        self.bus = BusServer(self.network, self.seed)
        self.bills = Bills(self.folder, self.folder.parent / "schema.db", Random(f"{self.seed}/bills"))
        self.witness = Witness(self.loop, self.bills)
        self.network.on_write, self.network.on_raised = self.witness.wrote, self.witness.raised
        self.loop.set_exception_handler(self.witness.unhandled)
        self.policy: Policy = draw_policy(rng)
        self.epoch = 1
        self.faults: list[Fault] = draw_faults(self.seed, Random(f"{self.seed}/faults"), TROUBLE_S)
        self._mains, self._spares, self._places = rng.randint(2, 4), rng.randint(1, 2), rng.randint(2, 3)
        self._clients = rng.choice((10, 25, 50))

    def say(self, text: str) -> None:
        self.witness.say(text)

    # the run

    async def run(self) -> None:
        self._start_nodes()
        under_way = [self._spawn(self._strike(fault)) for fault in self.faults]
        under_way += [self._spawn(self._roll_out())]
        clients = [self._client(number) for number in range(self._clients)]
        first_s, last_s = self.rng.choice(((0.0, TROUBLE_S), (0.0, TROUBLE_S), (3.0, 5.0), (8.0, 12.0)))
        starts = [self.rng.uniform(first_s, last_s) for _ in clients]
        comers = [self._spawn(self._run_client(client, at_s)) for client, at_s in zip(clients, starts, strict=True)]
        await asyncio.sleep(TROUBLE_S + 5.0)
        await self._heal(under_way)
        await asyncio.gather(*comers)
        for place in range(len(self.gateways)):
            await self._probe(place)
        await asyncio.sleep(QUIET_S)
        self.say("the end")

    def _start_nodes(self) -> None:
        rng = self.rng
        for number in range(self._mains + self._spares):
            pool = POOL if number < self._mains else SPARE
            settings = engine_settings(pool, rng.choice((2, 4, 8)), rng.choice((10.0, 25.0)), rng.choice((130, 3000)))
            own_rng = Random(f"{self.seed}/r{number}")
            replica = Replica(f"r{number}", settings, self.bus, self.adapters, self.folder, own_rng)
            self.replicas[replica.name] = replica
            has = [ADAPTERS[0], ADAPTERS[2]] + ([ADAPTERS[1]] if rng.random() < 0.6 else [])
            replica.start_serving(has if pool == POOL else [])
        for place in range(self._places):
            self.gateways.append(self._gateway(place, catalogue(self.policy, 1)))

    def _gateway(self, place: int, first: Catalogue) -> GatewayNode:
        node = GatewayNode(
            f"g{place}",
            self.bus,
            self.replicas,
            Random(f"{self.seed}/{place}/{len(self.retired)}"),
            self._places,
            self.bills,
        )
        node.start(first)
        return node

    async def _strike(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        await fault.strike(self)

    async def _roll_out(self) -> None:
        for epoch, pause_s in enumerate((self.rng.uniform(1, 6), self.rng.uniform(2, 7), self.rng.uniform(2, 7)), 2):
            await asyncio.sleep(pause_s)
            self.epoch = epoch
            self.say(f"snapshot {epoch} is published")
            for place in range(self._places):
                self._spawn(self._deliver_snapshot(place, epoch))

    async def _deliver_snapshot(self, place: int, epoch: int) -> None:
        """Deliver a snapshot to a gateway; a newer one may have overtaken it."""
        await asyncio.sleep(self.rng.uniform(0.01, 1.0))
        while self.loop.time() < self.snapshots_from_s:
            await asyncio.sleep(self.snapshots_from_s - self.loop.time() + self.rng.uniform(0.0, 0.5))
        gateway = self.gateways[place]
        if gateway.node.alive and gateway.swapped[-1][1] < epoch:
            gateway.swap(catalogue(self.policy, epoch))
            self.say(f"{gateway.name} has snapshot {epoch}")

    async def _run_client(self, client: Client, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await client.run()

    async def _heal(self, under_way: list[asyncio.Task[Any]]) -> None:
        """End all faults, repair what is broken and start what is down."""
        self.say("all faults heal")
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        self.network.heal()
        self.bus.come_back()
        self.snapshots_from_s = 0.0
        for replica in self.replicas.values():
            if replica.state == "draining":
                replica.crash()
            if replica.state in ("down", "starting"):
                replica.state = "down"
                self._spawn(replica.start(0.0, new_agent=False))
            replica.heal()
        for place, gateway in enumerate(self.gateways):
            if not gateway.is_serving:
                await self._succeed(place)
            if self.gateways[place].swapped[-1][1] < self.epoch:
                self.gateways[place].swap(catalogue(self.policy, self.epoch))

    async def _probe(self, place: int) -> None:
        """Request the base model, for a caller without limits, until it answers or the probes are used up."""
        for number in range(_PROBES):
            plan = RequestPlan(
                f"probe{place}-{number}", "initech", POOL, f"probe {place}", "interactive", True, True, 8, None, 0.0,
                None, None, 0.0, False,
            )  # fmt: skip
            client = self._client(900 + 100 * place + number, self.probes)
            client.session, client.plans = None, [plan]
            client._pick = lambda _: self.gateways[place]
            await client.run()
            if self.probes[-1].ending == "streamed":
                return
            await asyncio.sleep(_PROBE_PAUSE_S)

    # actions of faults

    def any_replica(self, rng: Random) -> Replica:
        return rng.choice(list(self.replicas.values()))

    def any_gateway_name(self, rng: Random) -> str:
        return f"g{rng.randrange(self._places)}"

    async def crash_gateway(self, place: int, down_s: float) -> None:
        gateway = self.gateways[place]
        if not gateway.is_serving:
            return
        self.say(f"fault: {gateway.name} crashes")
        gateway.crash()
        self.crashed.append(gateway)
        await asyncio.sleep(down_s)
        await self._succeed(place)

    async def replace_gateway(self, place: int, drain_s: float) -> None:
        gateway = self.gateways[place]
        if not gateway.is_serving:
            return
        self.say(f"fault: {gateway.name} hands over, and drains for {drain_s:.0f} s at most")
        await self._succeed(place)
        self._spawn(gateway.drain(drain_s))

    async def _succeed(self, place: int) -> None:
        """Start another process at the same place, with the snapshot cached by the last one."""
        former = self.gateways[place]
        self.retired.append(former)
        self.gateways[place] = self._gateway(place, catalogue(self.policy, former.swapped[-1][1]))
        self.say(f"{former.name} is there again")

    # internals

    def all_gateways(self) -> list[GatewayNode]:
        return [*self.retired, *self.gateways]

    def _client(self, number: int, into: list[Outcome] | None = None) -> Client:
        outcomes = self.outcomes if into is None else into

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            self.say(f"{outcome.plan.request_id} is {outcome.ending} ({outcome.status}, {len(outcome.body)} bytes)")

        return Client(self.seed, number, self.network, self._pick, done)

    def _pick(self, number: int) -> GatewayNode | None:
        """Pick a serving gateway, like a load balancer that knows which ones serve."""
        serving = [gateway for gateway in self.gateways if gateway.is_serving]
        return serving[number % len(serving)] if serving else None

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        return self.loop.create_task(work)
