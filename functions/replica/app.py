"""The agent's own routes, for a supervisor, a kubelet or Prometheus. They need no key.

    GET     /healthz         the agent is alive
    GET     /readyz          the engine is ready and its first adapters are loaded; 503 lists what is missing
    GET     /engine/livez    503 with the reason if the engine is dead or hung for good: restart it
    GET     /metrics         the agent's Prometheus metrics
    GET     /engine/metrics  the engine's own Prometheus metrics, so that its port need not be open
    POST    /drain           accept no new work; `?wait_s=` delays the answer until the engine is empty (preStop hooks);
                             `?engine_ends=true` drains only until a new engine is ready
    DELETE  /drain           accept work again

Network callers may only read, because Prometheus's namespace reaches this port. Routes that change something accept
callers on loopback only: those in the pod or on the machine.
"""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from functions.engines.errors import EngineError
from functions.replica.status import AgentStatus

HEARD_AFTER_S = 2.0  # two heartbeats: every gateway is notified, and requests sent before have arrived
FETCHED_AFTER_S = 10.0  # default time that a stream waits for blocks prefilled here (`prefill.giveUpAfter`)
_LOOK_INTERVAL_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Drain:
    """Drain without breaking a request: notify the fleet, wait until the engine is empty, then send the last
    heartbeat.

    "Empty" counts only from readings taken after gateways had time to be notified: a request routed here in the same
    moment is on its way, and the engine's gauges do not show it yet. A replica of a prefill pool is not empty after
    its last prompt: the decoding replica fetches the blocks later, and would fail if the engine were gone.
    """

    status: AgentStatus
    timeout_s: float
    began_s: float | None = None
    is_final: bool = False  # the process exits after it
    is_engines: bool = False  # requested only for an engine that ends: over when there is a new one

    def start(self, why: str, *, is_final: bool = False, engine_ends: bool = False) -> None:
        """Start the drain; the next heartbeat announces it. `is_final` means that it cannot be cancelled, `engine_ends`
        that the next engine cancels it. Calling this again changes only these two."""
        self.is_final = self.is_final or is_final
        self.is_engines = engine_ends and (self.is_engines or self.began_s is None)
        if self.began_s is None:
            self.began_s = self.status.clock()
            self.status.draining = True
            _log.info("draining: %s", why)

    def undo(self) -> bool:
        """Cancel the drain, if there is one. Return False, and cancel nothing, if it is final."""
        if self.is_final:
            return False
        if self.began_s is not None:
            self.began_s = None
            self.status.draining = False
            _log.info("the drain is cancelled")
        return True

    def engine_is_new(self) -> None:
        """Cancel the drain if it was requested only for the former engine: a kubelet that restarts the engine runs its
        preStop hook."""
        if self.is_engines and self.began_s is not None:
            self.undo()

    @property
    def done(self) -> bool:
        """True if a drain has started and nothing is left to wait for: the engine is empty, starting, dead or condemned
        (a condemned engine ends no request)."""
        if self.began_s is None:
            return False
        if self.status.health.phase in ("starting", "dead") or self.status.condemned:
            return True
        empty_s = self.began_s + HEARD_AFTER_S
        if self.status.hands_over:
            empty_s = max(empty_s, self.status.worked_s + FETCHED_AFTER_S)
        return self.status.load.outstanding == 0 and self.status.load_read_s >= empty_s

    async def wait(self, timeout_s: float | None = None, *, until: asyncio.Event | None = None) -> bool:
        """Wait until the drain is done, `timeout_s` (at most the drain's own limit, which None means) is over, or
        `until` is set. Return True if it is done."""
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        deadline_s = self.status.clock() + limit_s
        hurry = until or asyncio.Event()
        while not self.done and not hurry.is_set() and (left_s := deadline_s - self.status.clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_INTERVAL_S)):
                    await hurry.wait()
        return self.done


MAX_WAIT_S = 3600.0
_METRICS_KEPT_S = 30.0  # two scrapes: an engine that is gone for longer must show as gone


def make_app(
    status: AgentStatus,
    drain: Drain,
    metrics_page: Callable[[], bytes],
    engine_metrics_page: Callable[[], Awaitable[bytes]],
) -> FastAPI:
    """Build the agent's own app, with its routes for health, metrics and drains. `engine_metrics_page` raises
    EngineError if the engine does not answer."""
    app = FastAPI(title="shoal replica agent", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        missing = status.not_ready()
        return JSONResponse(_describe(status) | {"not_ready": missing}, status_code=503 if missing else 200)

    @app.get("/engine/livez")
    async def livez() -> Response:
        return JSONResponse(
            {"phase": status.health.phase, "condemned": status.condemned}, status_code=503 if status.condemned else 200
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(metrics_page(), media_type=CONTENT_TYPE_LATEST)

    one_at_a_time = asyncio.Lock()
    last, read_s = b"", float("-inf")

    @app.get("/engine/metrics")
    async def engine_metrics() -> Response:
        """Return the engine's metrics. If the engine is busy, return its last page with its age for a while."""
        nonlocal last, read_s
        try:
            async with one_at_a_time:
                last = await engine_metrics_page()
                read_s = status.clock()
        except EngineError as error:
            age_s = status.clock() - read_s
            if age_s > _METRICS_KEPT_S:
                words = {"error": f"the engine's metrics are unavailable: {error}"}
                return JSONResponse(words, status_code=503, headers={"retry-after": "5"})
            return Response(last, media_type=CONTENT_TYPE_LATEST, headers={"age": f"{age_s:.0f}"})
        return Response(last, media_type=CONTENT_TYPE_LATEST)

    @app.post("/drain", dependencies=[Depends(_from_here)])
    async def start_drain(
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0, engine_ends: bool = False
    ) -> Response:
        drain.start("its engine is to end" if engine_ends else "requested by POST /drain", engine_ends=engine_ends)
        done = await drain.wait(wait_s)
        return JSONResponse({"drained": done, "outstanding": status.load.outstanding}, status_code=200 if done else 202)

    @app.delete("/drain", dependencies=[Depends(_from_here)])
    async def undo_drain() -> Response:
        if drain.undo():
            return JSONResponse({"draining": False})
        return JSONResponse({"error": "this agent is stopping: its drain cannot be cancelled"}, status_code=409)

    return app


def _from_here(request: Request) -> None:
    """Raise HTTPException 403 for callers that do not use a loopback address: those outside this machine or pod."""
    caller = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(caller)
    except ValueError:
        address = ipaddress.IPv4Address(0)
    if not (getattr(address, "ipv4_mapped", None) or address).is_loopback:
        raise HTTPException(
            403, "this route accepts only 127.0.0.1, from inside the pod or the machine: use `kubectl exec`"
        )


def _describe(status: AgentStatus) -> dict[str, object]:
    phase, reason = status.phase()
    return {
        "replica_id": status.identity.replica_id,
        "pool": status.identity.pool,
        "phase": phase,
        "reason": reason,
        "adapters": list(status.adapters.advertised),
        "adapter_room": status.adapters.room,
        "cold_adapters": status.adapters.cold,
        "running": status.load.running,
        "waiting": status.load.waiting,
        "snapshot_epoch": status.snapshot_epoch,
        "snapshot_problem": status.snapshot_problem(),
        "engine_version": status.engine_version,
    }
