"""Bodies of requests to the agent: small, whole, or not at all."""

from fastapi import Request
from starlette.requests import ClientDisconnect

BODY_MAX_BYTES = 4096


async def read_body(request: Request) -> bytes | None:
    """The whole body, or None where it is over its bound or does not come whole."""
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if len(content) > BODY_MAX_BYTES:
                return None
    except ClientDisconnect:
        return None
    return bytes(content)
