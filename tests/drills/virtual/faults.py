"""Faults of a seed and their times, drawn before the run begins, so that a seed is a list that can be read.

Each kind is one small function of the fleet; `KINDS` gives its weight. All faults heal at the end of their time, and
the run then shows whether anything was left behind.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tests.drills.virtual.bus import BUS

if TYPE_CHECKING:
    from tests.drills.virtual.fleet import Fleet

Act = Callable[["Fleet", Random], Coroutine[Any, Any, None]]
_ODD: tuple[dict[str, Any], ...] = (
    {"error_status": 500},
    {"error_status": 503, "retry_after_s": 2},
    {"error_status": 429},
    {"malformed": "non_json"},
    {"malformed": "truncated_chunk"},
    {"malformed": "wrong_content_length"},
    {"malformed": "html_body"},
    {"malformed": "split_utf8"},
    {"malformed": "crlf"},
    {"stall_after_tokens": 0},
    {"stall_after_tokens": 3},
    {"reset_after_tokens": 0},
    {"reset_after_tokens": 3},
    {"delay_s": 2.0},
)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float  # since the run began
    kind: str
    rng_seed: str

    async def strike(self, fleet: "Fleet") -> None:
        await KINDS[self.kind][1](fleet, Random(self.rng_seed))


def draw_faults(seed: str, rng: Random, until_s: float) -> list[Fault]:
    count = rng.choice((1, 3, 6, 12))
    kinds = rng.sample(list(KINDS), k=rng.randint(1, len(KINDS)))  # a seed has some kinds of trouble, not all
    weights = [KINDS[kind][0] for kind in kinds]
    drawn = [
        Fault(rng.uniform(0.5, until_s), rng.choices(kinds, weights)[0], f"{seed}/fault/{number}")
        for number in range(count)
    ]
    return sorted(drawn, key=lambda fault: fault.at_s)


async def crash_replica(fleet: "Fleet", rng: Random) -> None:
    replica = fleet.any_replica(rng)
    fleet.say(f"fault: {replica.name} crashes")
    replica.crash()
    await replica.start(rng.uniform(0.2, 12.0), new_agent=rng.random() < 0.5)


async def drain_replica(fleet: "Fleet", rng: Random) -> None:
    replica = fleet.any_replica(rng)
    fleet.say(f"fault: {replica.name} drains")
    await replica.drain(rng.uniform(2.0, 10.0))
    await replica.start(rng.uniform(0.2, 5.0), new_agent=True)


async def hang_replica(fleet: "Fleet", rng: Random) -> None:
    await _spoil(fleet, rng, {rng.choice(("freeze", "hang")): True}, rng.uniform(1.0, 15.0))


async def slow_replica(fleet: "Fleet", rng: Random) -> None:
    await _spoil(fleet, rng, {"slow_factor": rng.choice((3.0, 10.0, 40.0))}, rng.uniform(3.0, 15.0))


async def odd_replica(fleet: "Fleet", rng: Random) -> None:
    await _spoil(fleet, rng, rng.choice(_ODD) | {"ratio": rng.choice((0.3, 1.0))}, rng.uniform(2.0, 10.0))


async def reset_connections(fleet: "Fleet", rng: Random) -> None:
    ends = list(fleet.network.ends)
    for end in rng.sample(ends, k=min(len(ends), rng.randint(1, 6))):
        fleet.say(f"fault: the connection {end.number} of {end.node} and {end.peer.node} is reset")
        end.reset("reset on the way")


async def part_gateway_and_replica(fleet: "Fleet", rng: Random) -> None:
    gateway, replica = fleet.any_gateway_name(rng), fleet.any_replica(rng).name
    _part(fleet, rng, gateway, replica, rng.uniform(0.5, 12.0))


async def part_gateway_and_bus(fleet: "Fleet", rng: Random) -> None:
    fleet.bus_was_troubled = True
    _part(fleet, rng, fleet.any_gateway_name(rng), BUS, rng.uniform(1.0, 25.0))


async def mute_agent(fleet: "Fleet", rng: Random) -> None:
    _part(fleet, rng, f"agent-{fleet.any_replica(rng).name}", BUS, rng.uniform(1.0, 25.0))


async def lose_bus(fleet: "Fleet", rng: Random) -> None:
    fleet.say("fault: the bus is gone")
    fleet.bus_was_troubled = True
    fleet.bus.go_down()
    await asyncio.sleep(rng.uniform(0.5, 20.0))
    fleet.bus.come_back()


async def crash_gateway(fleet: "Fleet", rng: Random) -> None:
    await fleet.crash_gateway(rng.randrange(len(fleet.gateways)), rng.uniform(0.2, 4.0))


async def restart_gateway(fleet: "Fleet", rng: Random) -> None:
    await fleet.replace_gateway(rng.randrange(len(fleet.gateways)), rng.choice((1.0, 5.0, 20.0)))


async def step_wall_clock(fleet: "Fleet", rng: Random) -> None:
    gateway = rng.choice(fleet.gateways)
    gateway.node.wall_step_s += rng.choice((-300.0, -2.0, 2.0, 300.0))
    fleet.say(f"fault: the wall clock of {gateway.name} is off by {gateway.node.wall_step_s:.0f} s")


async def lose_controller(fleet: "Fleet", rng: Random) -> None:
    for_s = rng.uniform(2.0, 20.0)
    fleet.say(f"fault: no snapshot comes for {for_s:.1f} s")
    fleet.snapshots_from_s = max(fleet.snapshots_from_s, fleet.loop.time() + for_s)


async def withdraw_adapter(fleet: "Fleet", rng: Random) -> None:
    """Make an engine lose an adapter that its agent has announced, as after an eviction unknown to the agent."""
    replica = fleet.any_replica(rng)
    loaded = list(replica.parts.adapters) if replica.parts is not None and replica.state == "ready" else []
    if loaded and replica.parts is not None:
        chosen = rng.choice(loaded)
        fleet.say(f"fault: {replica.name} loses {chosen.name}")
        replica.parts.adapters.forget(chosen.name)


KINDS: dict[str, tuple[float, Act]] = {
    "crash_replica": (3.0, crash_replica),
    "drain_replica": (1.0, drain_replica),
    "hang_replica": (2.0, hang_replica),
    "slow_replica": (2.0, slow_replica),
    "odd_replica": (3.0, odd_replica),
    "reset_connections": (3.0, reset_connections),
    "part_gateway_and_replica": (3.0, part_gateway_and_replica),
    "part_gateway_and_bus": (1.0, part_gateway_and_bus),
    "mute_agent": (2.0, mute_agent),
    "lose_bus": (1.0, lose_bus),
    "crash_gateway": (1.0, crash_gateway),
    "restart_gateway": (1.0, restart_gateway),
    "step_wall_clock": (1.0, step_wall_clock),
    "lose_controller": (1.0, lose_controller),
    "withdraw_adapter": (1.0, withdraw_adapter),
}


async def _spoil(fleet: "Fleet", rng: Random, changes: dict[str, Any], for_s: float) -> None:
    replica = fleet.any_replica(rng)
    if replica.state != "ready":
        return
    fleet.say(f"fault: {replica.name} for {for_s:.1f} s: {changes}")
    life = replica.lives
    replica.set_faults(**changes)
    await asyncio.sleep(for_s)
    if replica.lives == life:
        replica.heal()


def _part(fleet: "Fleet", rng: Random, one: str, other: str, for_s: float) -> None:
    until_s = fleet.loop.time() + for_s
    ways = rng.choice((((one, other),), ((other, one),), ((one, other), (other, one))))
    for source, target in ways:
        fleet.say(f"fault: nothing passes from {source} to {target} for {for_s:.1f} s")
        fleet.network.block(source, target, until_s)
