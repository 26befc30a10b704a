"""Bills of a simulated fleet match its engines' counts despite disconnects, retries, hedges, and kills of both sides.

    tokens of finished answers that engines counted and gateways read  =  tokens charged for finished answers
    the registry's bills  =  what gateways charged at every end  -  what killed gateways had not written down

Unfinished answers are charged for the tokens delivered. This engine model reports a token only at the first one and at
the end, so that is one token, and never more than was generated.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from functions.api.ids import TenantId
from functions.api.snapshot import RoutingEntry
from functions.gateway.request.request import Ended
from functions.gateway.usage.sums import UsageSums
from functions.simulator.fleet.simulation import Actor, Simulation
from functions.simulator.fleet.upstream import ModelledConnection
from functions.simulator.workload.request import WorkloadRequest
from tests.drills.virtual.bills import Account, Bills
from tests.simulator.rigs import rig

PER_S = 200.0
_REPLICAS, _GATEWAYS = 20, 4
_TOLD_EVERY_S, _TROUBLE_EVERY_S, _LEAVE_EVERY_S = 10, 3.0, 0.2


def _workload(requests: int) -> Iterator[WorkloadRequest]:
    for number in range(requests):
        yield WorkloadRequest((number + 1) / PER_S, TenantId(f"t{number % 5}"), 400, 1 + number * 37 % 150)


class Run:
    """One simulation and its bookkeeping."""

    def __init__(self, folder: Path, requests: int, seed: int) -> None:
        self.rng = Random(seed)
        self.bills = Bills(folder, folder / "schema.db", Random(seed + 1))
        self.finished: Counter[str] = Counter()  # tokens by tenant, as engines counted them
        self.settled: Counter[str] = Counter()  # the same, as gateways settled them
        self.endings: Counter[str] = Counter()  # requests by how they ended
        self.charged: Counter[str] = Counter()  # tokens charged, likewise
        self.hedges = self.gateways_killed = self.seconds = 0
        self.accounts: dict[int, Account] = {}
        actors: list[Actor] = [(1.0, self._second), (_LEAVE_EVERY_S, self._leave), (_TROUBLE_EVERY_S, self._trouble)]
        self.simulation = rig(
            _workload(requests),
            actors=actors,
            replicas=_REPLICAS,
            gateways=_GATEWAYS,
            routing=RoutingEntry("default", ("*",), hedge_after_s=0.15),
            seed=seed,
        )

    def run(self) -> None:
        with self._watching():
            self.simulation.run()
        for gateway in self.simulation.gateways:
            self.hedges += gateway.services.hedging.begun_total
        self.bills.heals = True
        for account in self.accounts.values():
            account.close()
        for number in range(_GATEWAYS):  # bills of killed gateways without a successor
            self._account(number, begun_again=True).close()

    # events

    def _second(self, simulation: Simulation) -> None:
        self.seconds += 1
        for number, gateway in enumerate(simulation.gateways):
            if gateway.is_up:
                account = self._account(number)
                account.write_spool()
                if (self.seconds + number) % _TOLD_EVERY_S == 0:
                    account.deliver()

    def _leave(self, simulation: Simulation) -> None:
        """Let a random client leave: in the queue, before its first token, or in mid-stream."""
        gateway = self.rng.choice(simulation.gateways)
        clients = list(gateway.clients.values())
        if clients and gateway.is_up:
            client = self.rng.choice(clients)
            if client.exchange is not None:
                client.exchange.client_left()
                client.cut()

    def _trouble(self, simulation: Simulation) -> None:
        replica = self.rng.choice(simulation.replica_ids())
        match self.rng.randrange(4):
            case 0:
                simulation.crash(replica)
                simulation.events.after(3.0, lambda: simulation.restart(replica))
            case 1:
                simulation.hang(replica, 5.0)
            case 2:
                simulation.slow(replica, 8.0, 5.0)
            case _:
                self._kill_gateway(simulation, self.rng.randrange(_GATEWAYS))

    def _kill_gateway(self, simulation: Simulation, number: int) -> None:
        if simulation.gateways[number].is_up and number in self.accounts:
            self.gateways_killed += 1
            dead = self.accounts.pop(number)
            self.bills.killed(dead, simulation.now_s)
            self._dead.add(dead.delivery.sums)
            self.hedges += simulation.gateways[number].services.hedging.begun_total
            simulation.restart_gateway(number)

    def _account(self, number: int, *, begun_again: bool = False) -> Account:
        sums = self.simulation.gateways[number].services.usage
        if number not in self.accounts or begun_again:
            self.accounts[number] = self.bills.account(f"g{number}", sums, lambda: self.simulation.now_s)
        return self.accounts[number]

    # observers

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._dead: set[UsageSums] = set()  # a killed process settles nothing
        count, over = UsageSums.count, ModelledConnection.over

        def counted(sums: UsageSums, ended: Ended, charged: Any) -> None:
            if sums not in self._dead:
                self.bills.ended(sums, ended, self.simulation.now_s)
                kind = _kind(ended)
                self.endings[kind] += 1
                if kind == "finished":
                    self.settled[ended.admitted.caller.tenant] += ended.usage.completion_tokens
                self.charged[kind] += charged[2]
            count(sums, ended, charged)

        def ended(connection: ModelledConnection, computed_tokens: int) -> None:
            if connection.is_open:
                asked = connection.asking.request
                self.finished[asked.tenant] += max(1, asked.output_tokens)
            over(connection, computed_tokens)

        with patch.object(UsageSums, "count", counted), patch.object(ModelledConnection, "over", ended):
            yield


def _kind(ended: Ended) -> str:
    if ended.usage is not None:
        return "finished"
    return "left" if ended.status == 499 else "failed" if ended.attempts else "refused"


_SOAK = pytest.param(100_000, marks=pytest.mark.soak)


@pytest.mark.timeout(3600)  # 2 s of one core, or a minute of it
@pytest.mark.parametrize("requests", [4_000, _SOAK])
def test_bills_match_what_engines_generated(tmp_path: Path, requests: int) -> None:
    run = Run(tmp_path, requests, seed=5)
    run.run()
    outcome, bills = run.simulation.outcome, run.bills
    lost = sum(bills.lost[key] for key in bills.lost if key[2] == "requests")
    print(
        f"\n{requests} asked; {dict(run.endings)} ended, with {dict(run.charged)} tokens charged; {outcome.retries} "
        f"retries, {run.hedges} hedges\n{sum(run.finished.values())} tokens of finished answers by the engines' count\n"
        f"{dict(bills.table())}"
    )
    assert run.finished == run.settled, "what an engine finished is charged to the token, once"
    assert bills.differences() == []
    assert min(outcome.retries, run.hedges, run.gateways_killed, lost) > 0, "nothing was tried"
    assert min(run.endings[kind] for kind in ("left", "failed")) > 0, "nothing was tried"
    unfinished = ("left", "failed", "refused")
    assert sum(run.charged[kind] for kind in unfinished) <= sum(run.endings[kind] for kind in unfinished)
    assert lost <= run.gateways_killed * 2 * PER_S
    bills.database.close()
