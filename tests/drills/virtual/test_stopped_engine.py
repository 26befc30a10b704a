"""One of two engines is stopped (SIGSTOP) for 15 s under a steady load: its requests move elsewhere soon.

The run is in virtual time, so that the figures are the gateway's and not the machine's.
"""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from tests.drills.virtual.clients import Outcome, RequestPlan
from tests.drills.virtual.fleet import Fleet
from tests.drills.virtual.loop import VirtualLoop
from tests.drills.virtual.platform import Policy, catalogue
from tests.drills.virtual.replica_node import Replica, engine_settings, make_adapters
from tests.drills.virtual.seed import end, workplace
from tests.gateway.rig import POOL

RATE_PER_S, FOR_S, STOPPED_S = 25, 22.0, (4.0, 19.0)


class TwoEngines(Fleet):
    def run_steadily(self) -> list[Outcome]:
        """Return the outcomes of requests sent while the engine was stopped, or in the second before."""
        self.loop.run_until_complete(self._steady())
        first_s, last_s = STOPPED_S
        return [each for each in self.outcomes if first_s - 1.0 <= each.began_s - self._began_s < last_s]

    async def _steady(self) -> None:
        self.policy = Policy(tight=False, hedge=False, fallback=False, percents=(10, 50), promoted=False)
        self._places, self._began_s = 1, self.loop.time()
        for name in ("r0", "r1"):
            settings = engine_settings(POOL, 64, 10.0, 3000)
            replica = Replica(name, settings, self.bus, self.adapters, self.folder, Random(name))
            self.replicas[name] = replica
            replica.start_serving([])
        self.gateways.append(self._gateway(0, catalogue(self.policy, 1)))
        await asyncio.sleep(3.0)
        self._began_s = self.loop.time()
        comers = []
        stop = self._spawn(self._stop(self.replicas["r0"]))
        for number in range(int(RATE_PER_S * FOR_S)):
            comers.append(self._spawn(self._one(number)))
            await asyncio.sleep(1.0 / RATE_PER_S)
        await asyncio.gather(stop, *comers)

    async def _stop(self, replica: Replica) -> None:
        first_s, last_s = STOPPED_S
        await asyncio.sleep(first_s)
        replica.set_faults(freeze=True)
        await asyncio.sleep(last_s - first_s)
        replica.heal()

    async def _one(self, number: int) -> None:
        plan = RequestPlan(
            f"q{number}", "initech", POOL, f"question {number} of the day", "interactive", number % 4 != 0, True, 40,
            None, 0.0, None, None, 0.0, False,
        )  # fmt: skip
        client = self._client(number)
        client.session, client.plans = None, [plan]
        client._pick = lambda _: self.gateways[0]
        await client.run()


@pytest.fixture
def outcomes() -> Iterator[list[Outcome]]:
    with workplace() as place:
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        fleet = TwoEngines("stopped", place, make_adapters(place / "adapters"), loop)
        try:
            yield fleet.run_steadily()
        finally:
            end(loop, fleet)


def test_no_request_waits_for_a_stopped_engine(outcomes: list[Outcome]) -> None:
    firsts_s = sorted(each.first_s - each.began_s for each in outcomes if each.plan.stream and each.first_s is not None)
    wholes_s = sorted(each.ended_s - each.began_s for each in outcomes if not each.plan.stream)
    endings = [each.ending for each in outcomes]
    told = {ending: endings.count(ending) for ending in sorted(set(endings))}
    told_s = [round(of[int(len(of) * ratio)], 2) for of in (firsts_s, wholes_s) for ratio in (0.5, 0.95, 0.99)]
    assert told.get("refused", 0) == 0, (told, told_s, {each.body for each in outcomes if each.ending == "refused"})
    assert firsts_s[-1] < 3.0 and firsts_s[int(len(firsts_s) * 0.99)] < 2.0, (told, told_s, firsts_s[-5:])
