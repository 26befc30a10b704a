"""The agent's own routes: what a supervisor or a kubelet requests. No key: they listen on loopback or inside the pod.

GET  /healthz        the agent lives
GET  /readyz         the engine is ready and was filled once with its adapters; 503 says what is missing
GET  /engine/livez   503 with the reason once the engine is dead or hung for good: restart it
GET  /metrics        Prometheus
POST /drain          stop taking work; `?wait_s=` holds the answer until the engine is empty (for preStop hooks)
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from functions.replica.status import AgentStatus

HEARD_AFTER_S = 2.0  # two heartbeats: every gateway has the news, and what it had sent before has arrived
_LOOK_INTERVAL_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Drain:
    """Leaving without breaking a request: notify the fleet, wait until the engine is empty, then say goodbye.

    "Empty" counts only from readings taken after gateways had time to be notified: a request that was routed here in
    the same moment is on its way, and the engine's gauges know nothing of it yet.
    """

    status: AgentStatus
    timeout_s: float
    began_s: float | None = None

    def begin(self, why: str) -> None:
        """Announce it; the heartbeat loop tells the fleet with its next heartbeat. Again is harmless."""
        if self.began_s is None:
            self.began_s = self.status.clock()
            self.status.draining = True
            _log.info("draining: %s", why)

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        if self.began_s is None:
            return False
        if self.status.health.phase in ("starting", "dead"):
            return True
        return self.status.load.outstanding == 0 and self.status.load_read_s >= self.began_s + HEARD_AFTER_S

    async def wait(self, timeout_s: float | None = None, *, until: asyncio.Event | None = None) -> bool:
        """Wait until done, out of time, or `until` is set; whether it is done."""
        limit_s = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        deadline_s = self.status.clock() + limit_s
        hurry = until or asyncio.Event()
        while not self.done and not hurry.is_set() and (left_s := deadline_s - self.status.clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_INTERVAL_S)):
                    await hurry.wait()
        return self.done


MAX_WAIT_S = 3600.0


def make_app(status: AgentStatus, drain: Drain, metrics_page: Callable[[], bytes]) -> FastAPI:
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

    @app.post("/drain")
    async def start_drain(wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0) -> Response:
        drain.begin("asked by POST /drain")
        done = await drain.wait(wait_s)
        return JSONResponse({"drained": done, "outstanding": status.load.outstanding}, status_code=200 if done else 202)

    return app


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
