"""The open-loop client of the live runs: sends each request at its time and records the answer."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import orjson

from functions.decisions.admission.ticket import BANDS
from functions.fleet.tasks import Supervised
from loadtests.fairness.fleet import MODEL, LiveFleet
from loadtests.fairness.virtual import VirtualRequest

_ANSWER_S = 300.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d+)")
_RETRY = re.compile(rb"retry-after: (\d+)")
_TEXT = b'"text":"'


@dataclass(slots=True)
class Sample:
    asked: VirtualRequest
    sent_s: float  # since the start of the run
    status: int = 0  # 0: no answer
    ttft_s: float | None = None
    took_s: float = 0.0
    whole: bool = False
    retry_after_s: int | None = None
    returned_from: "Sample | None" = None


async def offer(
    fleet: LiveFleet, asked: Sequence[VirtualRequest], stretch: float, until_s: float, tell: Callable[[str], None]
) -> list[Sample]:
    """Send the requests and return all samples until `until_s`. Times of `asked` are stretched as the engines' are."""
    samples: list[Sample] = []
    tasks = Supervised()
    tasks.forever("heartbeats", fleet.heartbeat)
    await fleet.ready()
    began_s = time.monotonic()

    async def one(each: VirtualRequest, at_s: float, former: Sample | None) -> None:
        await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
        sample = Sample(each, time.monotonic() - began_s, returned_from=former)
        samples.append(sample)
        await _send_request(fleet, sample)
        tries_left = each.tries_left - (former is not None)
        if sample.retry_after_s is not None and tries_left > 0:
            await one(each, time.monotonic() - began_s + sample.retry_after_s, sample)

    for each in asked:
        tasks.once("ask", one(each, each.at_s * stretch, None))
    while time.monotonic() < began_s + until_s:
        await asyncio.sleep(1.0)
        done = sum(sample.status != 0 for sample in samples)
        tell(f"{time.monotonic() - began_s:4.0f} s of {until_s:.0f}: {len(samples)} sent, {done} answered")
    await tasks.close()
    return samples


async def _send_request(fleet: LiveFleet, sample: Sample) -> None:
    began_s, head, tail = time.monotonic(), b"", b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", fleet.port)
            try:
                writer.write(_request(fleet, sample.asked))
                while data := await reader.read(65536):
                    head = head or data
                    if sample.ttft_s is None and head.startswith(b"HTTP/1.1 200") and _TEXT in tail + data:
                        sample.ttft_s = time.monotonic() - began_s
                    tail = (tail + data)[-200:]
                    sample.whole = sample.whole or b"data: [DONE]" in tail
            finally:
                writer.close()
    sample.took_s = time.monotonic() - began_s
    status, retry = _STATUS.match(head), _RETRY.search(head)
    sample.status = int(status[1]) if status else 0
    sample.retry_after_s = int(retry[1]) if retry else None


def _request(fleet: LiveFleet, asked: VirtualRequest) -> bytes:
    first = abs(hash((asked.at_s, asked.tenant))) % 1000  # makes prompts distinct
    body = orjson.dumps(
        {
            "model": MODEL,
            "prompt": [first + 1, *range(1, asked.prompt_tokens)],
            "max_tokens": asked.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    )
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {fleet.keys[asked.tenant]}\r\n"
        f"content-type: application/json\r\nx-shoal-class: {BANDS[asked.band]}\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
