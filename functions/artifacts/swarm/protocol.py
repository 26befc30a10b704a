"""Protocol between nodes and tracker, and the tracker's client: `POST /internal/v1/swarm/{digest}`, strict JSON.

A node announces its chunks and receives peers to request from and chunks to read from the store. Bitmaps are in the
order of `Manifest.distinct_chunks()`. The response to a chunk request (`GET /chunks/{sha256}?artifact=<digest>`) also
carries the sender's bitmap (HAVE_HEADER), so peers that exchange chunks need no further requests.
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
RETRY_HEADER = "x-shoal-retry-after-ms"  # in addition to retry-after, which only has whole seconds
BODY_MAX_BYTES = 64 * 1024
ANSWER_MAX_BYTES = 1024 * 1024  # 64 peers with 5.5 kB of bitmap each, and the grants
MAX_PEERS = 64
MAX_AVOIDED = 64

_Address = Annotated[str, msgspec.Meta(max_length=ADDRESS_MAX_CHARS)]
_Bits = Annotated[str, msgspec.Meta(max_length=(MAX_CHUNKS // 8 + 2) // 3 * 4)]
_Zone = Annotated[str, msgspec.Meta(max_length=64)]


class MessageRefused(ValueError):
    """The message is invalid; the text says why."""


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
    """Return the body and the announcement in a node's message; raise MessageRefused if it is invalid."""
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
    """Decode the tracker's answer; raise MessageRefused if it is invalid.

    Peers with an unacceptable address are skipped: a node on the registry's own machine may announce loopback, which
    must not make the whole answer unusable for others.
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


ANSWER_WITHIN_S = 5.0  # leaves time for a retry before the tracker forgets the node, which is after 15 s of silence


class TrackerUnavailable(Exception):
    """The tracker sent no usable answer: continue with the known peers, and retry later."""


@dataclass(frozen=True, slots=True)
class TrackerClient:
    """Client of the tracker. `http` has the registry's address and the token. `loopback_allowed`: this node is on
    loopback."""

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
