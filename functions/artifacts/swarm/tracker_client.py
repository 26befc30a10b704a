"""Asking the tracker: one POST that says what this node has and brings back peers and grants."""

import asyncio
from dataclasses import dataclass

import httpx

from functions.api.ids import Digest
from functions.artifacts.swarm.wire import (
    ANSWER_MAX_BYTES,
    SWARM_PATH,
    MessageRefused,
    decode_answer,
    encode_announcement,
)
from functions.decisions.distribution.swarm import PeerAnswer
from functions.decisions.distribution.tracker import Announcement

ANSWER_WITHIN_S = 5.0  # the tracker forgets who is silent for 15 s: one lost answer must leave time for the next


class TrackerUnavailable(Exception):
    """No answer that can be used: go on with the peers that are known, and ask again later."""


@dataclass(frozen=True, slots=True)
class TrackerClient:
    """`http` has the registry's address, its authority and the token. `loopback_allowed`: this node is on loopback."""

    http: httpx.AsyncClient
    digest: Digest
    count: int  # chunks of the artifact
    loopback_allowed: bool
    answer_within_s: float = ANSWER_WITHIN_S

    async def announce(self, news: Announcement, *, leaving: bool = False) -> PeerAnswer:
        body = encode_announcement(news, self.count, leaving=leaving)
        try:
            async with (
                asyncio.timeout(self.answer_within_s),
                self.http.stream("POST", SWARM_PATH + self.digest, content=body) as response,
            ):
                document = await _bounded(response)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise TrackerUnavailable(f"the tracker does not answer: {error!r}") from error
        if response.status_code != 200:
            raise TrackerUnavailable(f"the tracker answered {response.status_code}: {document[:300]!r}")
        try:
            return decode_answer(document, self.count, loopback_allowed=self.loopback_allowed)
        except MessageRefused as error:
            raise TrackerUnavailable(f"the tracker's answer is refused: {error}") from error


async def _bounded(response: httpx.Response) -> bytes:
    document = bytearray()
    async for block in response.aiter_bytes():
        document += block
        if len(document) > ANSWER_MAX_BYTES:
            raise TrackerUnavailable(f"the tracker's answer is over {ANSWER_MAX_BYTES} bytes")
    return bytes(document)
