"""Ids of files and batches, and their keys in the bucket.

    file-<11 hex: ms since 1970><21 hex: random>     ids sort by age; 84 random bits cannot be guessed
    records/<tenant>/<file id>                       metadata; the file exists if this object does
    contents/<tenant>/<file id>                      its bytes
    batches/<tenant>/<batch id>/<number>             a batch's records (`batches.log`)
    parts/<tenant>/<batch id>/<claim>-<n>            its results while it runs
    open/<tenant>/<batch id>                         a marker of each batch that is not over
    clock                                            written to read the store's time (`batches.collecting`)

No key contains text of a client: an id is used only if it has an id's form. A tenant's name comes from its key's
entry in the snapshot, where names cannot contain a slash. An id of another tenant finds nothing, because the key
always has the caller's own tenant.
"""

import re
import secrets
from typing import Literal

Kind = Literal["file", "batch"]

_JOINT = {"file": "-", "batch": "_"}  # as OpenAI's
_FORM = {kind: re.compile(rf"{kind}{joint}[0-9a-f]{{32}}") for kind, joint in _JOINT.items()}
_CHANCE_HEX = 21
CLOCK_KEY = "clock"


def new_id(kind: Kind, now_unix_s: float) -> str:
    chance = secrets.randbits(4 * _CHANCE_HEX)
    return f"{kind}{_JOINT[kind]}{int(now_unix_s * 1000) & 0xFFFFFFFFFFF:011x}{chance:0{_CHANCE_HEX}x}"


def is_id(kind: Kind, text: object) -> bool:
    return isinstance(text, str) and _FORM[kind].fullmatch(text) is not None


def record_key(tenant: str, file_id: str) -> str:
    return f"records/{tenant}/{file_id}"


def content_key(tenant: str, file_id: str) -> str:
    return f"contents/{tenant}/{file_id}"


def log_prefix(tenant: str, batch_id: str = "") -> str:
    return f"batches/{tenant}/{batch_id}/" if batch_id else f"batches/{tenant}/"


def log_key(tenant: str, batch_id: str, number: int) -> str:
    return f"{log_prefix(tenant, batch_id)}{number:06d}"


def parts_prefix(tenant: str, batch_id: str) -> str:
    return f"parts/{tenant}/{batch_id}/"


def part_key(tenant: str, batch_id: str, claim: int, number: int) -> str:
    return f"{parts_prefix(tenant, batch_id)}{claim:06d}-{number:06d}"


def marker_key(tenant: str, batch_id: str) -> str:
    return f"open/{tenant}/{batch_id}"
