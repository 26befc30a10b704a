"""Routes of the adapter cache.

GET /objects/{kind}/{sha256}   a chunk's or a manifest's bytes; 404: the store has none; 503: read the store itself
GET /readyz, GET /metrics      for a kubelet and Prometheus, without a credential

Nodes use the same credential as for each other's chunks. At most `max_answers` are sent at the same time, because
each is an object in memory until its client has received it.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, get_args

from fastapi import FastAPI, Path
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from functions.artifacts.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing
from functions.replica.adapter_cache.objects import Kind
from functions.replica.adapter_cache.read_through import ReadThrough, Result, TooBusy
from functions.replica.peer_app import Accepted, CredentialRequired

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
RETRY_S = "1"


def make_app(cache: ReadThrough, accepted: Accepted, max_answers: int) -> ASGIApp:
    app = FastAPI(title="shoal adapter cache", docs_url=None, redoc_url=None, openapi_url=None)
    places = _Places(max_answers)

    @app.get("/objects/{kind}/{sha256}")
    async def content(kind: Kind, sha256: Sha256) -> Response:
        if not places.free:
            return _refused(503, "too many answers are being sent; read the store directly", {"retry-after": RETRY_S})
        places.free -= 1
        try:
            return _Answer(await cache.get(kind, sha256), places)
        except BaseException as error:
            places.free += 1
            return _answer_to(error)

    guarded = CredentialRequired(app, accepted)
    pages: dict[str, Callable[[], Awaitable[Response]]] = {"/readyz": _ready, "/metrics": lambda: _metrics(cache)}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        opened = pages.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if opened is not None:
            await (await opened())(scope, receive, send)
            return
        await guarded(scope, receive, send)

    return answer


class _Places:
    """Number of answers that may still be held in memory."""

    def __init__(self, most: int) -> None:
        self.free = most


class _Answer(Response):
    """Answer that frees its place at its end. The listener's guard disconnects clients that read too slowly."""

    media_type = "application/octet-stream"

    def __init__(self, content: bytes, places: _Places) -> None:
        super().__init__(content)
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.free += 1


def _answer_to(error: BaseException) -> Response:
    """Return the response for a store error; raise any other error again."""
    match error:
        case TooBusy():
            return _refused(503, "too many objects are being read; read the store directly", {"retry-after": RETRY_S})
        case ArtifactMissing():
            return _refused(404, str(error))
        case ArtifactCorrupt():
            return _refused(502, str(error))
        case ArtifactError():
            return _refused(503, str(error), {"retry-after": RETRY_S})
        case _:
            raise error


async def _ready() -> Response:
    return JSONResponse({"ready": True})


async def _metrics(cache: ReadThrough) -> Response:
    return Response(_page(cache), media_type="text/plain; version=0.0.4")


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message}}, status, headers=headers)


class _Collector(Collector):
    """The cache's Prometheus page, read from its parts at each scrape."""

    def __init__(self, cache: ReadThrough) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        cache, objects = self._cache, self._cache.objects
        requests = CounterMetricFamily(
            "shoal_region_cache_requests",
            "Objects requested from the region's adapter cache, by result; joined: waited for another request's read.",
            labels=["result"],
        )
        for result in get_args(Result):
            requests.add_metric([result], cache.results[result])
        yield requests
        yield CounterMetricFamily(
            "shoal_region_cache_store_bytes", "Bytes read from the store.", cache.store_bytes_total
        )
        yield CounterMetricFamily("shoal_region_cache_evicted", "Objects evicted to make room.", objects.evicted_total)
        yield CounterMetricFamily(
            "shoal_region_cache_rotten", "Objects found corrupt on the cache's disk.", objects.rotten_total
        )
        yield GaugeMetricFamily(
            "shoal_region_cache_bytes", "Bytes of objects on the cache's disk.", objects.total_bytes
        )


def _page(cache: ReadThrough) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(cache))
    return generate_latest(registry)
