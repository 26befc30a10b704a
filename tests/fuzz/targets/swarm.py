"""Messages of the chunk swarm: announcements, answers of tracker and peers, manifests, addresses, artifact URIs."""

import contextlib

from functions.artifacts import manifest
from functions.artifacts.base_facts import decode as decode_facts
from functions.artifacts.errors import ArtifactError
from functions.artifacts.locations import parse_artifact_uri
from functions.artifacts.swarm.addresses import AddressRefused, check_address
from functions.artifacts.swarm.chunk_clients import _busy_s
from functions.artifacts.swarm.protocol import MAX_PEERS, MessageRefused, decode_announcement, decode_answer
from functions.decisions.distribution import bloom, chunk_bits
from tests.fuzz.inputs import Input

DICTIONARY = (
    '{"address":"10.0.0.1:8481","chunks":8,"have":"/w==","zone":"a","room":1,"avoid":[]}',
    '{"peers":[{"address":"10.0.0.1:8481","zone":"a","have":"/w=="}],"grants":"AA==","again_after_s":1.0,"nodes":2}',
    '"leaving":true',
    "[2001:db8::1]:8481",
    "127.0.0.1:1",
    "169.254.169.254:80",
    "s3://shoal-models/acme/bot",
    "sha256:",
    '"schema_version":1',
    '"chunk_bytes":8388608',
    '"files":[',
)
_CHUNKS = 8


def check(data: bytes) -> None:
    given = Input(data)
    _PARTS[given.byte() % len(_PARTS)](given.rest())


def _announcement(data: bytes) -> None:
    try:
        body, said = decode_announcement(data, loopback_allowed=False)
    except MessageRefused:
        return
    assert 0 <= said.have < 1 << body.chunks and not said.address.startswith("127.")


def _answer(data: bytes) -> None:
    try:
        answer = decode_answer(data, _CHUNKS, loopback_allowed=False)
    except MessageRefused:
        return
    assert len(answer.peers) <= MAX_PEERS
    assert all(0 <= peer.have < 1 << _CHUNKS for peer in answer.peers) and 0 <= answer.grants < 1 << _CHUNKS


def _manifest(data: bytes) -> None:
    for decode in (manifest.decode, decode_facts):
        try:
            found = decode(data)
        except ArtifactError:
            continue
        if isinstance(found, manifest.Manifest):
            assert manifest.encode(found) == data, "one artifact has two names"


def _texts(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(AddressRefused):
        check_address(text, loopback_allowed=True)
    with contextlib.suppress(ArtifactError):
        parse_artifact_uri(text, bucket="shoal-models")
    with contextlib.suppress(ValueError):
        assert 0 <= chunk_bits.decode(text, _CHUNKS) < 1 << _CHUNKS
    bloom.decode(text)
    assert 0.0 <= _busy_s(text) <= 60.0


_PARTS = (_announcement, _answer, _manifest, _texts)
