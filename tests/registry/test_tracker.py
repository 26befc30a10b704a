"""The tracker: bounded, protected by the token, and open to nodes only."""

import json
from collections.abc import AsyncIterator
from random import Random

import httpx
import pytest
from fastapi import Depends, FastAPI

from functions.api.ids import Digest
from functions.artifacts.swarm.protocol import BODY_MAX_BYTES, decode_answer, encode_announcement
from functions.decisions.distribution.tracker import Announcement, BoardPolicy
from functions.registry import errors
from functions.registry.conventions import require_token
from functions.registry.tracker import FORGET_AFTER_S, Tracker, TrackerFull, tracker_routes

DIGEST = Digest("sha256:" + "a" * 64)
PATH = f"/internal/v1/swarm/{DIGEST}"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tracker(clock: Clock) -> Tracker:
    return Tracker(BoardPolicy(max_nodes=3), max_boards=2, rng=Random(1), clock=clock)


@pytest.fixture
async def http(tracker: Tracker) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    errors.install_error_handlers(app)
    app.include_router(tracker_routes(tracker, [Depends(require_token("right"))]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, client=("10.0.0.9", 5000)),
        base_url="http://registry",
        headers={"authorization": "Bearer right"},
    ) as client:
        yield client


def body(number: int, have: int = 0, *, room: int = 0, leaving: bool = False, count: int = 12) -> bytes:
    return encode_announcement(Announcement(f"10.0.0.{number}:8500", "", have, room), count, leaving=leaving)


async def test_nodes_get_each_others_addresses(http: httpx.AsyncClient) -> None:
    first = await http.post(PATH, content=body(1, 0b11, room=4))
    assert decode_answer(first.content, 12, loopback_allowed=False).grants.bit_count() == 4
    second = decode_answer((await http.post(PATH, content=body(2))).content, 12, loopback_allowed=False)
    assert [(peer.address, peer.have) for peer in second.peers] == [("10.0.0.1:8500", 0b11)]
    (report,) = (await http.get("/internal/v1/swarm")).json()["data"]
    assert report == {"digest": DIGEST, "chunks": 12, "nodes": 2, "complete": 0, "leases": 4}


async def test_node_that_leaves_is_removed(http: httpx.AsyncClient, tracker: Tracker) -> None:
    await http.post(PATH, content=body(1, 0b11))
    assert (await http.post(PATH, content=body(1, 0b11, leaving=True))).status_code == 200
    assert tracker.reports()[0].nodes == 0


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_tracker_requires_the_token(http: httpx.AsyncClient, token: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    assert (await http.post(PATH, content=body(1), headers=headers)).status_code == 401
    assert (await http.get("/internal/v1/swarm", headers=headers)).status_code == 401


async def test_invalid_announcements_are_refused_and_change_nothing(http: httpx.AsyncClient, tracker: Tracker) -> None:
    loopback = json.loads(body(1)) | {"address": "127.0.0.1:8500"}
    metadata = json.loads(body(1)) | {"address": "169.254.169.254:80"}
    for content in (b"", b"{", b"[]", json.dumps(loopback).encode(), json.dumps(metadata).encode()):
        answer = await http.post(PATH, content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_announcement")
    assert (await http.post(PATH, content=b" " * (BODY_MAX_BYTES + 1))).status_code == 413
    assert (await http.post("/internal/v1/swarm/sha256:x", content=body(1))).status_code == 400
    assert tracker.reports() == []


async def test_artifact_has_a_single_chunk_count(http: httpx.AsyncClient) -> None:
    await http.post(PATH, content=body(1))
    answer = await http.post(PATH, content=body(2, count=13))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "other_manifest")


async def test_nodes_and_artifacts_are_bounded(http: httpx.AsyncClient) -> None:
    for number in (1, 2, 3):
        assert (await http.post(PATH, content=body(number))).status_code == 200
    full = await http.post(PATH, content=body(4))
    assert (full.status_code, full.headers["retry-after"]) == (503, "10")
    assert (await http.post(PATH, content=body(3))).status_code == 200
    assert (await http.post(PATH.replace("a" * 64, "b" * 64), content=body(1))).status_code == 200
    assert (await http.post(PATH.replace("a" * 64, "c" * 64), content=body(1))).status_code == 503


def test_nodes_are_bounded_over_all_artifacts(clock: Clock) -> None:
    tracker = Tracker(max_nodes=3, rng=Random(1), clock=clock)
    digests = [Digest(f"sha256:{letter * 64}") for letter in "abc"]
    for number, digest in enumerate(digests):
        tracker.announce(digest, 4, Announcement(f"10.0.0.{number}:1", "", 0))
    for digest in (digests[0], Digest("sha256:" + "d" * 64)):
        with pytest.raises(TrackerFull, match="all transfers together"):
            tracker.announce(digest, 4, Announcement("10.0.0.9:1", "", 0))
    assert [report.digest for report in tracker.reports()] == digests
    tracker.announce(digests[0], 4, Announcement("10.0.0.0:1", "", 1))
    tracker.leave(digests[1], "10.0.0.1:1")
    tracker.announce(digests[0], 4, Announcement("10.0.0.9:1", "", 0))


def test_artifact_without_fetchers_is_removed(tracker: Tracker, clock: Clock) -> None:
    news = Announcement("10.0.0.1:1", "", 0)
    for letter in "ab":
        tracker.announce(Digest(f"sha256:{letter * 64}"), 4, news)
    with pytest.raises(TrackerFull):
        tracker.announce(Digest("sha256:" + "c" * 64), 4, news)
    clock.now_s += FORGET_AFTER_S / 2
    tracker.announce(Digest("sha256:" + "a" * 64), 4, news)
    clock.now_s += FORGET_AFTER_S / 2 + 1
    tracker.announce(Digest("sha256:" + "c" * 64), 4, news)
    assert [report.digest[7] for report in tracker.reports()] == ["a", "c"]
