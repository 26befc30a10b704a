"""Optimistic concurrency over HTTP: a thing's `lock_version` is its ETag, `If-Match` names the one that was seen."""

import re
from typing import Annotated

from fastapi import Header

from functions.registry.errors import ApiError

_TAG = re.compile(r'\s*"?([0-9]{1,12})"?\s*')

IfMatch = Annotated[str, Header(alias="if-match", max_length=100, description="The ETag that was seen; * for any.")]


def etag(lock_version: int) -> dict[str, str]:
    return {"etag": f'"{lock_version}"'}


def seen(if_match: str) -> int | None:
    """The lock version that the header names; None where it names none or any."""
    if if_match.strip() in ("", "*"):
        return None
    match = _TAG.fullmatch(if_match)
    if match is None:
        message = f'If-Match is {if_match[:40]!r}; it takes one ETag as this registry gives them, such as "3", or *'
        raise ApiError(400, "invalid_if_match", message, "if-match")
    return int(match[1])
