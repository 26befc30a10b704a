"""Snapshot documents, full and as deltas: the result is content that survives a round trip, or SnapshotInvalid.

The first byte selects a full document, a delta for the rig's snapshot (`{BASE}` is its hash), or a file of frames.
"""

import io
from functools import cache

from functions.api.snapshot import Snapshot, SnapshotInvalid, decode, encode
from functions.api.snapshot_document import in_chunks, read
from functions.api.snapshot_index import Indexed, indexed
from functions.fleet.snapshot_frames import Torn, next_frame
from tests.fuzz.inputs import Input
from tests.gateway.rig import snapshot

DICTIONARY = (
    '{"is":"snapshot","schema_version":3,"epoch":7,"revision":"r","compiled_unix_s":1.5,"base":""}\n',
    '{"is":"snapshot","schema_version":3,"epoch":7,"revision":"r","compiled_unix_s":1.5,"base":"{BASE}"}\n',
    '{"is":"removed","section":"keys","name":"acme-ci"}\n',
    '{"is":"tenant","name":"acme","tier":"free","models":["acme/*"]}\n',
    '{"is":"pool","name":"p"}\n',
    '"section":"models"',
    '{"bytes":          12,"sha256":"',
    "\n",
)


@cache
def _base() -> Indexed:
    return indexed(snapshot())


def check(data: bytes) -> None:
    given = Input(data)
    kind = given.byte() % 3
    document = given.rest()
    if kind == 2:
        _frames(document)
        return
    try:
        found = _delta(document) if kind else decode(document)
    except SnapshotInvalid as invalid:
        assert str(invalid)
        return
    again = decode(encode(found))
    assert again == found and encode(again) == encode(found)


def _delta(document: bytes) -> Snapshot:
    changed = read(in_chunks(document.replace(b"{BASE}", _base().content_hash.encode())), _base())
    assert changed.content_hash == indexed(changed.snapshot).content_hash, "a delta's content has a name of its own"
    return changed.snapshot


def _frames(document: bytes) -> None:
    file = io.BytesIO(document)
    try:
        while next_frame(file) is not None:
            pass
    except (SnapshotInvalid, Torn):
        pass
