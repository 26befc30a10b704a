"""The parts of a measurement of one gateway: each is a few seconds of traffic and its figures.

CPU time is read during the traffic, so that neither connecting nor closing counts. Parts marked `fresh` get a process
that no other part has used.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from loadtests.bench.load import HeldStream, Tally, Target, closed_loop, hold_streams, set_engine_pace
from loadtests.bench.processes import cpu_of_all_us, resident_of_all_kib

Figures = dict[str, float]

_MODEL = "acme/bench"
_CONNECTIONS = 32
_WARM_S = 0.7
_WINDOW_S = 2.5
_LINE = "The tide came in over the flats, and the birds that had fed there since dawn rose all at once.\n"
_VARIANTS = 16  # prompts that share their first quarter, so that prefix caches have both hits and misses
_ENDLESS = 1_000_000_000
_OPENED_S = 90.0
_LEFT_S = 4.0  # maximum wait for a gateway to close the engine's request after its client left
_STALLED_S = 5.0


@dataclass(frozen=True, slots=True)
class Rig:
    """One running gateway and the addresses around it. Without `pids`, clients talk to the engines directly."""

    target: Target
    pids: tuple[int, ...]
    engine_port: int
    streams: int  # maximum of streams that are held open together


@dataclass(frozen=True, slots=True)
class Part:
    measure: Callable[[Rig], Awaitable[Figures]]
    fresh: bool = False
    rounds: int = 99  # maximum
    direct: bool = False  # also measured without a gateway


def body(size_bytes: int, variant: int = 0, stream: bool = False) -> bytes:
    """Return a chat request of about `size_bytes`."""
    shared = _LINE * (size_bytes // 4 // len(_LINE))
    own = f"Page {variant}. {_LINE}" * (1 + size_bytes // len(_LINE))
    prompt = (shared + own)[: size_bytes - 130]
    messages = [{"role": "user", "content": prompt}]
    asked = {"model": _MODEL, "messages": messages, "max_tokens": 256, "stream": stream}
    return json.dumps(asked, separators=(",", ":")).encode()


def _per_request(size_bytes: int, name: str) -> Callable[[Rig], Awaitable[Figures]]:
    async def measure(rig: Rig) -> Figures:
        bodies = [body(size_bytes, variant) for variant in range(_VARIANTS)]
        tally = Tally()
        asking = asyncio.create_task(  # noqa: TID251 - awaited below
            closed_loop(rig.target, bodies, _CONNECTIONS, _WARM_S + _WINDOW_S, tally)
        )
        await asyncio.sleep(_WARM_S)
        requests, used_us, began_s = tally.requests, cpu_of_all_us(rig.pids), time.perf_counter()
        await asyncio.sleep(_WINDOW_S - 0.2)
        requests, used_us = tally.requests - requests, cpu_of_all_us(rig.pids) - used_us
        took_s = time.perf_counter() - began_s
        await asking
        return {
            f"request_{name}_us": used_us / max(1, requests),
            f"requests_{name}_per_s": requests / took_s,
            f"busy_{name}_ratio": used_us / 1e6 / took_s,
            "failed": tally.failures,
        }

    return measure


def _per_chunk(streams: int, interval_ms: float, name: str) -> Callable[[Rig], Awaitable[Figures]]:
    async def measure(rig: Rig) -> Figures:
        await set_engine_pace(rig.engine_port, events=_ENDLESS, interval_ms=interval_ms)
        held = await hold_streams(rig.target, body(1024, stream=True), min(streams, rig.streams))
        await _all_begun(held)
        await asyncio.sleep(_WARM_S)
        chunks, used_us, began_s = _events(held), cpu_of_all_us(rig.pids), time.perf_counter()
        await asyncio.sleep(_WINDOW_S)
        chunks, used_us = _events(held) - chunks, cpu_of_all_us(rig.pids) - used_us
        took_s = time.perf_counter() - began_s
        failed = await _release(rig, held)
        return {
            f"chunk_{name}_us": used_us / max(1, chunks),
            f"chunks_{name}_per_s": chunks / took_s,
            "failed": failed,
        }

    return measure


async def _round_trip(rig: Rig) -> Figures:
    bodies = [body(1024, variant) for variant in range(_VARIANTS)]
    await closed_loop(rig.target, bodies, 1, _WARM_S)
    tally = await closed_loop(rig.target, bodies, 1, _WINDOW_S)
    times_us = sorted(tally.round_trips_us) or [0.0]
    return {
        "rtt_p50_us": times_us[len(times_us) // 2],
        "rtt_p99_us": times_us[int(len(times_us) * 0.99)],
        "failed": tally.failures,
    }


async def _memory(rig: Rig) -> Figures:
    await _warm_up(rig)
    await set_engine_pace(rig.engine_port, events=_ENDLESS, interval_ms=1000)
    before_kib = resident_of_all_kib(rig.pids)
    held = await hold_streams(rig.target, body(1024, stream=True), rig.streams)
    await _all_begun(held)
    await asyncio.sleep(2.0)  # two steps of every engine
    grown_kib = resident_of_all_kib(rig.pids) - before_kib
    failed = await _release(rig, held)
    return {"stream_kib": grown_kib / max(1, len(held) - failed), "streams": len(held) - failed, "failed": failed}


async def _leaving(rig: Rig) -> Figures:
    """Measure the time until the engine's requests are closed after clients left during prefill."""
    await _warm_up(rig)
    await set_engine_pace(rig.engine_port, events=_ENDLESS, interval_ms=50, prefill_ms=3000 * _LEFT_S)
    held = await hold_streams(rig.target, body(1024, stream=True), 20)
    await _until_open(rig, len(held), _OPENED_S)
    left_s = time.perf_counter()
    for stream in held:
        stream.transport.close()
    await _until_open(rig, 0, _LEFT_S)
    told_s = time.perf_counter() - left_s
    await set_engine_pace(rig.engine_port, prefill_ms=0)
    return {"leaving_s": min(told_s, _LEFT_S)}


async def _stalled(rig: Rig) -> Figures:
    """Measure the growth of the gateway's memory while a client stops reading and its engine writes 17 MB/s."""
    await _warm_up(rig)
    before_kib = resident_of_all_kib(rig.pids)
    await set_engine_pace(rig.engine_port, events=_ENDLESS, interval_ms=1, burst=64)
    held = await hold_streams(rig.target, body(1024, stream=True), 1)
    await _all_begun(held)
    held[0].transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(_STALLED_S)
    grown_kib = resident_of_all_kib(rig.pids) - before_kib
    await _release(rig, held)
    await set_engine_pace(rig.engine_port, burst=1)
    return {"stalled_kib": max(0, grown_kib)}


PARTS = {
    "leaving": Part(_leaving, fresh=True, rounds=2),
    "stalled": Part(_stalled, fresh=True, rounds=2),
    "memory": Part(_memory, fresh=True, rounds=2),
    "round-trip": Part(_round_trip, direct=True),
    "request-1k": Part(_per_request(1024, "1k")),
    "request-8k": Part(_per_request(8 * 1024, "8k")),
    "request-64k": Part(_per_request(64 * 1024, "64k")),
    "request-200k": Part(_per_request(200 * 1024, "200k")),
    "chunk-4k": Part(_per_chunk(200, 50.0, "4k")),
    "chunk-40k": Part(_per_chunk(400, 10.0, "40k")),
}


async def _warm_up(rig: Rig) -> None:
    """Send ordinary requests, so that one-time allocations of the process do not count as the cost of a stream."""
    await closed_loop(rig.target, [body(1024)], _CONNECTIONS, 1.0)


async def _all_begun(held: list[HeldStream]) -> None:
    """Wait until every stream has had an event or failed; after 90 s the rest counts as failed."""
    for _ in range(int(_OPENED_S / 0.05)):
        if all(stream.events or stream.failed for stream in held):
            return
        await asyncio.sleep(0.05)


def _events(held: list[HeldStream]) -> int:
    return sum(stream.events for stream in held)


async def _release(rig: Rig, held: list[HeldStream]) -> int:
    """Close the streams, wait until the engines are idle, and return the number of failed streams."""
    failed = sum(stream.failed or not stream.events for stream in held)
    for stream in held:
        stream.transport.abort()  # type: ignore[attr-defined]
    await _until_open(rig, 0, 2 * _LEFT_S)
    return failed


async def _until_open(rig: Rig, count: int, within_s: float) -> None:
    """Wait until the engines have `count` open requests, or until the time is over."""
    for _ in range(int(within_s / 0.01)):
        if await set_engine_pace(rig.engine_port) == count:
            return
        await asyncio.sleep(0.01)
