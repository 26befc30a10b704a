"""A client over plain sockets, with a connection per request: records the status and the arrival of each token."""

import asyncio
import json
from dataclasses import dataclass, field

_READ_BYTES = 64 * 1024
_ANSWER_S = 120.0


@dataclass(slots=True)
class Answer:
    request_id: str = ""
    status: int = 0
    sent_s: float = 0.0  # by the loop's clock
    delivered: list[tuple[float, int]] = field(default_factory=list)  # time by the loop's clock, tokens
    whole: bool = False  # True if the answer is complete
    left: bool = False  # True if the client disconnected on purpose

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.delivered)


@dataclass(frozen=True, slots=True)
class Ask:
    port: int
    api_key: str
    model: str
    request_id: str
    prompt: str
    max_tokens: int
    stream: bool
    leave_after_tokens: int | None = None  # disconnect from a stream after so many tokens


async def send(ask: Ask) -> Answer:
    """Send one request and return its answer, complete or not. Status 0 means a refused or broken connection."""
    answer = Answer(request_id=ask.request_id, sent_s=asyncio.get_running_loop().time())
    try:
        async with asyncio.timeout(_ANSWER_S):
            await _exchange(ask, answer)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
        pass  # `answer` has the part that arrived
    return answer


async def _exchange(ask: Ask, answer: Answer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.port)
    try:
        writer.write(_request(ask))
        head = await reader.readuntil(b"\r\n\r\n")
        answer.status = int(head.split(b" ", 2)[1])
        if ask.stream and answer.status == 200:
            await _stream(ask, reader, answer)
        else:
            body = await reader.read()
            if answer.status == 200:
                tokens = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["usage"]["completion_tokens"]
                answer.delivered.append((asyncio.get_running_loop().time(), tokens))
                answer.whole = True
    finally:
        writer.close()


async def _stream(ask: Ask, reader: asyncio.StreamReader, answer: Answer) -> None:
    loop, rest, seen = asyncio.get_running_loop(), b"", 0
    while data := await reader.read(_READ_BYTES):
        *events, rest = (rest + data).split(b"\n\n")
        tokens = sum(1 for event in events if b'"content":"' in event and b'"role"' not in event)
        if tokens:
            answer.delivered.append((loop.time(), tokens))
            seen += tokens
        if any(b"data: [DONE]" in event for event in events):
            answer.whole = True
        if ask.leave_after_tokens is not None and seen >= ask.leave_after_tokens and not answer.whole:
            answer.left = True
            return


def _request(ask: Ask) -> bytes:
    body = json.dumps(
        {
            "model": ask.model,
            "messages": [{"role": "user", "content": ask.prompt}],
            "max_tokens": ask.max_tokens,
            "ignore_eos": True,
            "stream": ask.stream,
        }
    ).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: application/json\r\nauthorization: Bearer %b\r\nx-request-id: %b\r\n"
        b"content-length: %d\r\n\r\n%b" % (ask.api_key.encode(), ask.request_id.encode(), len(body), body)
    )
