"""Protocol between nodes and tracker: `POST /internal/v1/swarm/{digest}`, JSON, strict and bounded; and its client.

A node announces what it has and gets, in one answer, peers to ask and chunks to read from the store. Bitmaps are in the
order of `Manifest.distinct_chunks()`. A chunk's answer (`GET /chunks/{sha256}?artifact=<digest>`) carries its sender's
bitmap too (HAVE_HEADER), so that peers which exchange anyway need no further questions.
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import httpx
import msgspec

from functions.api.ids import Digest
from functions.artifacts.swarm.addresses import ADDRESS_MAX_CHARS, AddressRefused, check_address
from functions.decisions.distribution.chunk_bits import MAX_CHUNKS, decode, encode
from functions.decisions.distribution.peers import PeerFacts
from functions.decisions.distribution.swarm import PeerAnswer
from functions.decisions.distribution.tracker import Announcement

SWARM_PATH = "/internal/v1/swarm/"
CHUNK_PATH = "/chunks/"
HAVE_PATH = "/swarm/"  # GET /swarm/{digest}: a peer's bitmap alone
HAVE_HEADER = "x-shoal-have"
RETRY_HEADER = "x-shoal-retry-after-ms"  # beside retry-after, which knows whole seconds only
BODY_MAX_BYTES = 64 * 1024
ANSWER_MAX_BYTES = 1024 * 1024  # 64 peers with 5.5 kB of bitmap each, and the grants
MAX_PEERS = 64
MAX_AVOIDED = 64

_Address = Annotated[str, msgspec.Meta(max_length=ADDRESS_MAX_CHARS)]
_Bits = Annotated[str, msgspec.Meta(max_length=(MAX_CHUNKS // 8 + 2) // 3 * 4)]
_Zone = Annotated[str, msgspec.Meta(max_length=64)]


class MessageRefused(ValueError):
    """Not what the other side may say; the text says why."""


class AnnounceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: _Address
    chunks: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNKS)]
    have: _Bits
    zone: _Zone = ""
    room: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    avoid: Annotated[tuple[_Address, ...], msgspec.Meta(max_length=MAX_AVOIDED)] = ()
    leaving: bool = False


class PeerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: _Address
    zone: _Zone
    have: _Bits


class AnnounceAnswer(msgspec.Struct, frozen=True):
    peers: Annotated[tuple[PeerEntry, ...], msgspec.Meta(max_length=MAX_PEERS)]
    grants: _Bits
    again_after_s: Annotated[float, msgspec.Meta(gt=0, le=60)]
    nodes: Annotated[int, msgspec.Meta(ge=0)]


def encode_announcement(announcement: Announcement, count: int, *, leaving: bool = False) -> bytes:
    body = AnnounceBody(
        address=announcement.address,
        chunks=count,
        have=encode(announcement.have, count),
        zone=announcement.zone,
        room=announcement.room,
        avoid=announcement.avoid[:MAX_AVOIDED],
        leaving=leaving,
    )
    return msgspec.json.encode(body)


def decode_announcement(document: bytes, *, loopback_allowed: bool) -> tuple[AnnounceBody, Announcement]:
    """The body and its meaning; MessageRefused."""
    try:
        body = msgspec.json.decode(document, type=AnnounceBody)
        address = check_address(body.address, loopback_allowed=loopback_allowed)
        have = decode(body.have, body.chunks)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AddressRefused, ValueError) as error:
        raise MessageRefused(str(error)) from error
    return body, Announcement(address, body.zone, have, body.room, body.avoid)


def encode_answer(answer: PeerAnswer, count: int) -> bytes:
    peers = tuple(PeerEntry(peer.address, peer.zone, encode(peer.have, count)) for peer in answer.peers[:MAX_PEERS])
    return msgspec.json.encode(
        AnnounceAnswer(peers, encode(answer.grants, count), round(answer.again_after_s, 3), answer.nodes)
    )


def decode_answer(document: bytes, count: int, *, loopback_allowed: bool) -> PeerAnswer:
    """The tracker's answer; MessageRefused.

    Peers whose address is not believed here are left out: a node on the registry's own machine may announce loopback,
    which must not cost all others the tracker.
    """
    try:
        answer = msgspec.json.decode(document, type=AnnounceAnswer)
        peers = tuple(
            PeerFacts(peer.address, peer.zone, decode(peer.have, count))
            for peer in answer.peers
            if _is_believed(peer.address, loopback_allowed)
        )
        return PeerAnswer(peers, decode(answer.grants, count), answer.again_after_s, answer.nodes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MessageRefused(str(error)) from error


def _is_believed(address: str, loopback_allowed: bool) -> bool:
    try:
        check_address(address, loopback_allowed=loopback_allowed)
    except AddressRefused:
        return False
    return True


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

    async def announce(self, announcement: Announcement, *, leaving: bool = False) -> PeerAnswer:
        body = encode_announcement(announcement, self.count, leaving=leaving)
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
