"""`/v1/snapshot`: the controller publishes the snapshot, all other processes follow it.

In both directions a document may be a delta: a follower names the content that it holds, a publisher the content that
its delta changes. If the base is unknown, the whole document is sent instead.

Gateways send their names as they follow and receive the number of gateways. So a gateway that starts without the bus
knows how many gateways share a tenant's limits, without configuration.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from functions.api.ids import NAME_PATTERN, PoolName
from functions.api.snapshot import EPOCH_MAX, SNAPSHOT_MAX_BYTES, SnapshotInvalid
from functions.api.snapshot_document import BaseMissing
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.snapshots import (
    BASE_HEADER,
    EPOCH_FLOOR_HEADER,
    EPOCH_HEADER,
    FENCE_HEADER,
    GATEWAY_HEADER,
    GATEWAYS_HEADER,
    HASH_HEADER,
)
from functions.registry.conventions import has_role, read_body, require_role, unless_client_leaves
from functions.registry.errors import ApiError
from functions.registry.feed import Feed
from functions.registry.fence import Fenced
from functions.registry.metrics import RegistryMetrics
from functions.registry.store import EpochTaken, SnapshotStore, StoreFailed, TooManyWaiters

MAX_WAIT_S = 60.0
FENCE_MAX = 2**53
_RETRY_AFTER = {"retry-after": "5"}
_MEDIA_TYPE = "application/jsonl"

After = Annotated[int, Query(ge=0, le=EPOCH_MAX, description="Epoch of the caller's snapshot; 0: none.")]
WaitSeconds = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for a later epoch.")]
Pool = Annotated[
    str | None, Query(pattern=rf"^(?:{NAME_PATTERN})$", description="Only this pool with its models, and all rollouts.")
]
Base = Annotated[
    str, Header(alias=BASE_HEADER, max_length=100, description="Hash of the content that the caller holds.")
]
FenceToken = Annotated[
    int, Header(alias=FENCE_HEADER, ge=0, le=FENCE_MAX, description="The publisher's leadership; 0: none.")
]


def snapshot_routes(store: SnapshotStore, metrics: RegistryMetrics, credentials: RoleCredentials) -> APIRouter:
    router = APIRouter()
    readers = [Depends(require_role(credentials, "follow", "agent", "publish"))]
    publishers = [Depends(require_role(credentials, "publish"))]

    @router.get(
        "/v1/snapshot",
        response_class=Response,
        responses={204: {"description": "No newer snapshot."}},
        dependencies=readers,
    )
    async def follow(
        request: Request, after: After = 0, wait_s: WaitSeconds = 0.0, pool: Pool = None, base: Base = ""
    ) -> Response:
        """The snapshot with an epoch above `after`, or its changes since the base, as soon as it is published; 204
        after `wait_s` seconds. With `pool`, only that pool's part."""
        store.record_follower_epoch(after)
        if GATEWAY_HEADER in request.headers and has_role(request, credentials, "follow"):
            store.gateways.record_request(request.headers[GATEWAY_HEADER])
        name = PoolName(pool) if pool is not None else None
        if wait_s == 0:
            return await _answer(store, await store.wait_beyond(after, 0, name), base, metrics)
        try:
            with store.reserve_waiter():
                feed = await unless_client_leaves(request, store.wait_beyond(after, wait_s, name))
        except TooManyWaiters as error:
            message = "too many callers wait for a snapshot; try again later"
            raise ApiError(503, "too_many_waiters", message, headers=_RETRY_AFTER) from error
        return await _answer(store, feed, base, metrics)

    @router.head("/v1/snapshot", response_class=Response, dependencies=readers)
    async def describe() -> Response:
        """Headers with epoch, hash and epoch floor of the snapshot, without the document, for publishers."""
        return Response(headers=_headers(store))

    @router.put(
        "/v1/snapshot",
        responses={409: {"description": "A later epoch or a later leadership has been published."}},
        dependencies=publishers,
    )
    async def publish(request: Request, fence: FenceToken = 0) -> Response:
        """Publish the body as the current snapshot, or apply it as a delta. It is durable before this route answers."""
        chunks = await read_body(request, SNAPSHOT_MAX_BYTES)
        try:
            await store.publish_document(chunks, fence)
        except BaseMissing as error:
            metrics.publications.labels(outcome="base_missing").inc()
            raise ApiError(412, "base_missing", f"send the whole document: {error}", headers=_headers(store)) from error
        except SnapshotInvalid as error:
            metrics.publications.labels(outcome="invalid").inc()
            raise ApiError(400, "invalid_snapshot", f"the snapshot is invalid, nothing has changed: {error}") from error
        except EpochTaken as error:
            metrics.publications.labels(outcome="epoch_taken").inc()
            raise ApiError(409, "epoch_taken", str(error), "epoch", _headers(store)) from error
        except Fenced as error:
            metrics.publications.labels(outcome="fenced").inc()
            headers = _headers(store) | {FENCE_HEADER: str(error.highest)}
            raise ApiError(409, "fenced", str(error), FENCE_HEADER, headers) from error
        except StoreFailed as error:
            metrics.publications.labels(outcome="store_failed").inc()
            raise ApiError(503, "store_failed", str(error), headers=_RETRY_AFTER) from error
        metrics.publications.labels(outcome="published").inc()
        return Response(status_code=204, headers=_headers(store))

    return router


async def _answer(store: SnapshotStore, feed: Feed | None, base: str, metrics: RegistryMetrics) -> Response:
    if feed is None:
        return Response(status_code=204, headers=_headers(store))
    delta = feed.delta_from(base) if base else None
    headers = _headers(store) | {HASH_HEADER: feed.content.content_hash}
    if delta is not None:
        metrics.count_answer("delta", len(delta))
        return Response(delta, media_type=_MEDIA_TYPE, headers=headers)
    content, pieces = await feed.whole()
    size_bytes = sum(map(len, pieces))
    metrics.count_answer("whole", size_bytes)
    headers |= {HASH_HEADER: content.content_hash, "content-length": str(size_bytes)}
    return StreamingResponse(_stream(pieces), media_type=_MEDIA_TYPE, headers=headers)


async def _stream(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """Yield one piece at a time as the caller reads, so that a thousand callers share one copy."""
    for piece in pieces:
        yield piece


def _headers(store: SnapshotStore) -> dict[str, str]:
    headers = {
        EPOCH_HEADER: str(store.epoch),
        EPOCH_FLOOR_HEADER: str(store.epoch_floor),
        "cache-control": "no-store",
    }
    if store.epoch:
        headers[HASH_HEADER] = store.feed.content.content_hash
    gateways = store.gateways.count_recent()
    return headers | {GATEWAYS_HEADER: str(gateways)} if gateways else headers
