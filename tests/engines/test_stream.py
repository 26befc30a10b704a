"""Delivery of one stream over a connection that only records."""

import json
from collections.abc import Callable
from typing import Any

from functions.engines.sim.accept import Prompt, ReplyChoice, Work
from functions.engines.sim.blocks import CacheScope
from functions.engines.sim.chunks import ChatChunks, StreamOptions
from functions.engines.sim.faults import Faults, Writer
from functions.engines.sim.progress import Envelope
from functions.engines.sim.reply import Ending, plan_reply
from functions.engines.sim.sequence import Sequence, Status
from functions.engines.sim.stream import Delivery, End, Saboteur
from functions.engines.sim.tokenizer import BuiltinTokenizer

TEXT = "one two three four five six"


class RememberedConnection:
    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.congested = False
        self.closing = False
        self.lost: Callable[[], None] | None = None

    def set_lost_callback(self, tell: Callable[[], None] | None) -> None:
        self.lost = tell

    def write_chunk(self, data: bytes) -> None:
        self.events.append(data)

    async def wait_until_drained(self) -> None:
        self.congested = False


class OneStream:
    """One stream: `token()` acts as the engine; the received pieces are those sent to the client."""

    def __init__(self) -> None:
        prompt = Prompt([1, 2, 3], TEXT)
        plan = plan_reply(TEXT, BuiltinTokenizer(), Ending(max_tokens=50))
        choice = ReplyChoice(0, prompt, plan)
        work = Work("m", None, CacheScope(), 0, 50, 1, (prompt,), (choice,))
        self.connection: Any = RememberedConnection()
        chunks = ChatChunks(Envelope("chatcmpl-x", "m", 1, "f", prompt_token_details=False), StreamOptions())
        writer, saboteur = Writer(self.connection), Saboteur(Faults(), self.connection)
        self.delivery = Delivery(work, chunks, self.connection, writer, saboteur)
        self.seq = Sequence.arrive(0, prompt.ids, plan.ids, now_s=0.0)
        self.delivery.replies_of([self.seq])

    def token(self) -> None:
        self.seq.emitted_tokens += 1
        if self.seq.emitted_tokens == self.seq.reply_tokens:
            self.seq.status = Status.FINISHED
        self.delivery.on_token(self.seq)

    def received_pieces(self) -> list[str]:
        lines = b"".join(self.connection.events).decode().splitlines()
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return [chunk["choices"][0]["delta"]["content"] for chunk in chunks]


async def test_a_token_is_an_event_and_the_first_brings_the_role() -> None:
    stream = OneStream()
    stream.token()
    stream.token()
    assert stream.received_pieces() == ["", "one", " two"]
    assert len(stream.connection.events) == 2


async def test_a_slow_reader_gets_what_it_missed_in_one_event() -> None:
    stream = OneStream()
    stream.token()
    stream.connection.congested = True
    stream.token()
    stream.token()
    assert stream.received_pieces() == ["", "one"]
    stream.connection.congested = False
    stream.token()
    assert stream.received_pieces() == ["", "one", " two three four"]


async def test_a_reader_that_is_slow_to_the_end_still_gets_everything() -> None:
    stream = OneStream()
    stream.connection.congested = True
    while stream.seq.status is not Status.FINISHED:
        stream.token()
    assert stream.delivery.ended.result() is End.COMPLETE
    assert stream.connection.events == []
    await stream.delivery.flush()
    assert "".join(stream.received_pieces()) == TEXT
    assert stream.connection.events[-1].endswith(b"data: [DONE]\n\n")


async def test_leaving_ends_the_stream_once() -> None:
    stream = OneStream()
    stream.token()
    stream.connection.lost()
    stream.connection.lost()
    assert stream.delivery.ended.result() is End.CLIENT_LEFT


async def test_a_client_that_left_before_the_start_is_noticed() -> None:
    connection: Any = RememberedConnection()
    connection.closing = True
    work = Work("m", None, CacheScope(), 0, 1, 1, (), ())
    chunks: Any = None
    delivery = Delivery(work, chunks, connection, Writer(connection), Saboteur(Faults(), connection))
    assert delivery.ended.result() is End.CLIENT_LEFT
