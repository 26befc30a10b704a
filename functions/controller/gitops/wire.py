"""A push as the hook sends it, checked: one JSON object, shapes and lengths bounded."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from functions.controller.gitops.push import MAX_UPDATES, Update
from functions.controller.gitops.review import Push, Verdict

ObjectId = Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
Reference = Annotated[str, msgspec.Meta(max_length=1024)]
Option = Annotated[str, msgspec.Meta(max_length=200)]


class PushMalformed(Exception):
    """Not what a hook sends."""


class _Order(msgspec.Struct, frozen=True):
    updates: Annotated[tuple[tuple[ObjectId, ObjectId, Reference], ...], msgspec.Meta(max_length=MAX_UPDATES + 1)]
    options: Annotated[tuple[Option, ...], msgspec.Meta(max_length=100)] = ()
    objects: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


def push_from(order: dict[str, Any]) -> Push:
    try:
        read = msgspec.convert(order, _Order)
    except msgspec.ValidationError as error:
        raise PushMalformed(str(error)) from error
    updates = tuple(Update(*update) for update in read.updates)
    return Push(updates, frozenset(read.options), Path(read.objects) if read.objects else None)


def verdict_to(verdict: Verdict) -> dict[str, Any]:
    return {"accepted": verdict.accepted, "lines": list(verdict.lines)}
