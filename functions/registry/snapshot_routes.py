"""`/v1/snapshot`: the controller puts, everyone else follows."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from functions.api import snapshot as snapshots
from functions.api.snapshot import EPOCH_MAX, SNAPSHOT_MAX_BYTES, SnapshotInvalid
from functions.fleet.snapshots import EPOCH_FLOOR_HEADER, EPOCH_HEADER, HASH_HEADER
from functions.registry.errors import ApiError
from functions.registry.guards import read_body, unless_client_leaves
from functions.registry.metrics import Metrics
from functions.registry.store import EpochTaken, Published, SnapshotStore, StoreFailed, TooManyWaiters

MAX_WAIT_S = 60.0
_RETRY_AFTER = {"retry-after": "5"}


def snapshot_routes(store: SnapshotStore, metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/snapshot", response_class=Response, responses={204: {"description": "Nothing newer."}})
    async def follow(
        request: Request,
        after: Annotated[int, Query(ge=0, le=EPOCH_MAX, description="The epoch that the caller has; 0: none.")] = 0,
        wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="How long to wait for a later one.")] = 0.0,
    ) -> Response:
        """The snapshot whose epoch is above `after`: at once, or as soon as it is published, or 204."""
        store.heard(after)
        if wait_s == 0 or store.epoch > after:
            return _answer(store, store.current if store.epoch > after else None)
        try:
            with store.waiting():
                return _answer(store, await unless_client_leaves(request, store.beyond(after, wait_s)))
        except TooManyWaiters as error:
            message = "too many callers wait for a snapshot; ask again later"
            raise ApiError(503, "too_many_waiters", message, headers=_RETRY_AFTER) from error

    @router.head("/v1/snapshot", response_class=Response)
    async def describe() -> Response:
        """Epoch, hash and floor without the document: what a publisher needs to know."""
        return Response(headers=_headers(store, store.current))

    @router.put("/v1/snapshot", responses={409: {"description": "The epoch is not after the current one."}})
    async def publish(request: Request) -> Response:
        """Make the body the current snapshot. It is on the disk before this answers."""
        document = await read_body(request, SNAPSHOT_MAX_BYTES)
        try:
            published = await store.publish(snapshots.decode(document))
        except SnapshotInvalid as error:
            metrics.publications.labels(outcome="invalid").inc()
            raise ApiError(400, "invalid_snapshot", f"the snapshot is refused, nothing has changed: {error}") from error
        except EpochTaken as error:
            metrics.publications.labels(outcome="epoch_taken").inc()
            headers = _headers(store, store.current)
            raise ApiError(409, "epoch_taken", str(error), "epoch", headers) from error
        except StoreFailed as error:
            metrics.publications.labels(outcome="store_failed").inc()
            raise ApiError(503, "store_failed", str(error), headers=_RETRY_AFTER) from error
        metrics.publications.labels(outcome="published").inc()
        return Response(status_code=204, headers=_headers(store, published))

    return router


def _answer(store: SnapshotStore, published: Published | None) -> Response:
    if published is None:
        return Response(status_code=204, headers=_headers(store, store.current))
    return Response(published.document, media_type="application/json", headers=_headers(store, published))


def _headers(store: SnapshotStore, published: Published | None) -> dict[str, str]:
    headers = {EPOCH_HEADER: "0", EPOCH_FLOOR_HEADER: str(store.epoch_floor), "cache-control": "no-store"}
    if published is not None:
        headers |= {EPOCH_HEADER: str(published.epoch), HASH_HEADER: published.snapshot_hash}
    return headers
