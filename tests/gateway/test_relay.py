"""Relay: output is byte-identical for any segmentation, except for the model's name."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from functions.gateway.request.answers import AnswerTooLarge, BadAnswer, Renaming, Usage, engine_error, read_usage
from functions.gateway.request.answers import whole_answer as read_whole
from functions.gateway.request.relay import StreamRelay, first_sign
from tests.gateway import sse
from tests.gateway.rig import BOT_V1

PUBLIC = "acme/bot:stable"
RENAMING = Renaming(BOT_V1, PUBLIC)
LIMIT = 1024 * 1024

STREAM = (
    sse.role(BOT_V1) + sse.token(BOT_V1, "h\u00e9llo") + sse.token(BOT_V1, " \U0001f41f") + sse.finish(BOT_V1),
    sse.usage(BOT_V1),
    sse.DONE,
)


def relay(keep_usage: bool = False, limit: int = LIMIT) -> StreamRelay:
    return StreamRelay(RENAMING, keep_usage, limit)


def fed(relayed: StreamRelay, *reads: bytes) -> bytes:
    return b"".join([relayed.feed(read) for read in reads])


def renamed(data: bytes) -> bytes:
    return data.replace(BOT_V1.encode(), PUBLIC.encode())


def cut(data: bytes, at: list[int]) -> list[bytes]:
    points = [0, *sorted({point % (len(data) + 1) for point in at}), len(data)]
    return [data[start:end] for start, end in pairwise(points)]


cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(cuts, st.booleans())
def test_any_split_into_reads_gives_the_same_bytes(at: list[int], keep_usage: bool) -> None:
    relayed = relay(keep_usage)
    out = fed(relayed, *cut(b"".join(STREAM), at))
    content, counted, done = STREAM
    assert out == renamed(content + (counted if keep_usage else b"") + done)
    assert relayed.done and relayed.error is None
    assert relayed.usage == Usage(3, 2, 0)
    assert relayed.events == 4


def test_stream_in_single_bytes_gives_the_same_output() -> None:
    data = b"".join(STREAM)
    assert fed(relay(True), *[data[i : i + 1] for i in range(len(data))]) == renamed(data)


@given(cuts)
def test_nothing_passes_after_the_end(at: list[int]) -> None:
    data = b"".join(STREAM) + sse.token(BOT_V1, "late") + sse.DONE + sse.error()
    relayed = relay()
    assert fed(relayed, *cut(data, at)) == renamed(STREAM[0] + sse.DONE)
    assert relayed.error is None


@given(cuts)
def test_error_event_is_held_back_and_ends_the_stream(at: list[int]) -> None:
    data = sse.token(BOT_V1, "a") + sse.error(503, "full") + sse.token(BOT_V1, "b") + sse.DONE
    relayed = relay()
    assert fed(relayed, *cut(data, at)) == renamed(sse.token(BOT_V1, "a"))
    assert relayed.error == sse.error(503, "full")[len(b"data: ") : -2]
    assert not relayed.done


@given(cuts, st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example([], f'"model":"{BOT_V1}"')
@example([], f'{{"model":"{BOT_V1}","choices":[]}}')
@example([], '\\"choices":[]')
@example([], "data: [DONE]")
@example([], 'data: {"error"')
@example([], "\n\n")
@example([], f'\\\\","model":"{BOT_V1}')
def test_generated_text_is_unchanged(at: list[int], text: str) -> None:
    """Whatever a model generates arrives unchanged, even bytes with a meaning for the relay."""
    data = sse.role("M") + sse.token("M", text) + sse.usage("M") + sse.DONE
    relayed = relay()
    out = fed(relayed, *cut(data.replace(b'"model":"M"', b'"model":"' + BOT_V1.encode() + b'"'), at))
    expected = sse.role(PUBLIC) + sse.token(PUBLIC, text) + sse.DONE
    assert out == expected
    assert relayed.usage == Usage(3, 2, 0)


@given(cuts, st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=8), st.booleans())
def test_objects_and_comments_pass_unchanged(at: list[int], contents: list[bytes], comments: bool) -> None:
    starts = [b": " if comments and number % 2 else b"data: {x" for number in range(len(contents))]
    data = b"".join(start + content + b"}\n\n" for start, content in zip(starts, contents, strict=True))
    relayed = relay()
    assert fed(relayed, *cut(data, at)) == data
    assert relayed.events == starts.count(b"data: {x"), "a comment is no token"


@given(
    cuts,
    st.sampled_from([b"data: x", b"data: [1]", b"data:{}", b'data: {"choices": [oops', b"event: x", b"<html>", b"\0"]),
)
def test_invalid_event_is_refused(at: list[int], event: bytes) -> None:
    relayed = relay()
    with pytest.raises(BadAnswer, match="no JSON object"):
        fed(relayed, *cut(sse.token("m", "x") + event + b"\n\n" + sse.DONE, at))


LATE_MODEL = sse.event({"id": "c", "choices": [{"index": 0, "delta": {"content": "x"}}], "model": BOT_V1})
TWICE = sse.event({"id": "c", "model": BOT_V1, "choices": [{"index": 0}], "model_card": {"model": BOT_V1}})
KINDS = {
    "usual": sse.token(BOT_V1, "a"),
    "says a marker": sse.token(BOT_V1, '"choices":[{'),
    "another second": sse.token(BOT_V1, "b").replace(b'"created":1', b'"created":2'),
    "another length": sse.token(BOT_V1, "c").replace(b'"id":"', b'"id":"longer-'),
    "model at the end": LATE_MODEL,
    "model twice": TWICE,
    "another model": sse.token("other", "d"),
    "no choices": sse.event({"id": "c", "model": BOT_V1}),
    "two lines": b'data: {"a":\ndata: 1}\n\n',
    "comment": b": ping\n\n",
    "usage": sse.usage(BOT_V1),
}


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=12), cuts)
@example(["usual", "usual", "usage", "usual", "model twice", "usual"], [])
@example(["usual", "two lines", "usual", "comment", "usual", "another length"], [])
def test_events_of_all_kinds_pass_in_any_order(kinds: list[str], at: list[int]) -> None:
    relayed = relay()
    out = fed(relayed, *cut(b"".join([KINDS[kind] for kind in kinds]), at))
    assert out == renamed(b"".join([KINDS[kind] for kind in kinds if kind != "usage"]))
    assert relayed.events == sum(kind not in ("usage", "comment") for kind in kinds)


@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=12), st.integers(1, 4))
@example(["model twice", "model twice"], 1)
@example(["usual", "two lines", "two lines", "usual"], 1)
def test_any_number_of_events_per_read_passes(kinds: list[str], events_per_read: int) -> None:
    events = [KINDS[kind] for kind in kinds]
    reads = [b"".join(events[start : start + events_per_read]) for start in range(0, len(events), events_per_read)]
    relayed = relay()
    assert fed(relayed, *reads) == renamed(b"".join([KINDS[kind] for kind in kinds if kind != "usage"]))
    assert relayed.events == sum(kind not in ("usage", "comment") for kind in kinds)


def test_event_that_only_starts_as_an_object_is_refused() -> None:
    usual, relayed = KINDS["usual"], relay()
    relayed.feed(usual)
    with pytest.raises(BadAnswer, match="no JSON object"):
        relayed.feed(usual + usual[:-3] + b"]\n\n" + usual)


def test_generated_text_that_looks_like_an_event_is_text() -> None:
    beginning = sse.token(BOT_V1, "").partition(b'"delta"')[0].decode()
    relayed = relay()
    said = sse.token(BOT_V1, f"}}\n\n{beginning}")
    assert fed(relayed, sse.token(BOT_V1, "a"), said, said + said) == (
        sse.token(PUBLIC, "a") + said.replace(b'"model":"' + BOT_V1.encode(), b'"model":"' + PUBLIC.encode()) * 3
    )
    assert relayed.events == 4


def test_long_event_in_small_pieces_is_collected_without_copying() -> None:
    relayed = relay()
    relayed.feed(b"data: {")
    relayed.feed(b"x")
    held = relayed._held
    for _ in range(1000):
        assert relayed.feed(b"x" * 100) == b""
    assert relayed._held is held, "not copied for each piece"
    assert relayed.feed(b"}\n\n") == b"data: {" + b"x" * 100_001 + b"}\n\n"


def test_half_an_event_never_passes() -> None:
    relayed = relay()
    whole, half = sse.token(BOT_V1, "a"), sse.token(BOT_V1, "b")[:-1]
    assert relayed.feed(whole + half) == renamed(whole)
    assert relayed.feed(b"\n") == renamed(sse.token(BOT_V1, "b"))


def test_stream_with_crlf_line_ends_is_not_relayed() -> None:
    """To the relay its events never end, so its stream counts as lost instead of passing half understood."""
    relayed = relay()
    assert fed(relayed, *(part.replace(b"\n", b"\r\n") for part in STREAM)) == b""
    assert not relayed.done


@pytest.mark.parametrize("size", [LIMIT - 10, LIMIT])
def test_an_event_up_to_the_bound_passes(size: int) -> None:
    event = b"data: {" + b"x" * (size - len(b"data: {}\n\n")) + b"}\n\n"
    assert fed(relay(), event[: size // 2], event[size // 2 :]) == event


def test_event_over_the_bound_is_refused() -> None:
    relayed = relay(limit=1000)
    with pytest.raises(BadAnswer, match="1000 bytes") as refused:
        fed(relayed, *([b"x" * 100] * 11))
    assert not isinstance(refused.value, AnswerTooLarge), "it began as no event: the engine's fault"


@pytest.mark.parametrize("pieces", [[b'data: {"choices"' + b"x" * 1001], [b'data: {"a":', *[b"x" * 100] * 11]])
def test_oversized_event_is_distinguished_from_an_invalid_one(pieces: list[bytes]) -> None:
    with pytest.raises(AnswerTooLarge, match="1000 bytes"):
        fed(relay(limit=1000), *pieces)


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        (3, 2, Usage(3, 2)),
        (-5, -1, Usage(0, 0)),
        (10**12, 10**15, Usage(10_000_000, 10_000_000)),
        (3, None, Usage(3, 0)),
        (None, 2, Usage(0, 2)),
        (10**30, 2, Usage(10_000_000, 2)),
        ("3", 2.5, Usage(0, 0)),
        (True, [], Usage(0, 0)),
    ],
)
def test_absurd_usage_is_clamped_and_removed(prompt: Any, completion: Any, expected: Usage) -> None:
    relayed = relay()
    assert relayed.feed(sse.usage(BOT_V1, prompt, completion) + sse.DONE) == sse.DONE
    assert relayed.usage == expected


def test_cached_tokens_are_read() -> None:
    document = b'{"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}}'
    assert read_usage(document) == Usage(9, 1, 8)


@pytest.mark.parametrize("document", [b"", b"x", b"[]", b"{}", b'{"usage":null}', b'{"usage":[]}', b'{"usage":{}x'])
def test_missing_usage_is_none(document: bytes) -> None:
    assert read_usage(document) is None


def test_event_without_choices_or_usage_passes() -> None:
    event = sse.event({"id": "x", "choices": [], "prompt_filter_results": []})
    assert relay().feed(event) == event


def test_base_model_requested_by_its_name_is_not_renamed() -> None:
    same = Renaming("base", "base")
    data = sse.token("base", "x")
    assert same.rename_fields(data) is data


# first events


A, ROLE = sse.token("m", "a"), sse.role("m")


@pytest.mark.parametrize(
    ("events", "sign"),
    [
        (b"", "nothing_yet"),
        (ROLE, "nothing_yet"),
        (ROLE * 8, "nothing_yet"),
        (b": keep-alive\n\n", "nothing_yet"),
        (sse.DONE, "nothing_yet"),
        (A, "answering"),
        (ROLE + A, "answering"),
        (b": keep-alive\n\n" + ROLE + A, "answering"),
        (sse.chunk("m", {"role": "assistant", "content": "a"}), "answering"),
        (sse.finish("m"), "answering"),
        (ROLE + sse.finish("m", "length"), "answering"),
        (sse.finish("m", "abort"), "dropped"),
        (ROLE + sse.finish("m", "abort"), "dropped"),
        (sse.text_chunk("m", "", "abort"), "dropped"),
        (sse.text_chunk("m", "", "error"), "dropped"),
        (ROLE + sse.token("m", '"finish_reason":"abort"'), "answering"),
        (b"data: not json\n\n", "answering"),
    ],
)
def test_first_sign(events: bytes, sign: str) -> None:
    assert first_sign(events) == sign


# whole answers


def test_a_whole_answer_is_renamed_and_counted() -> None:
    answer = read_whole(sse.whole(BOT_V1), RENAMING)
    assert answer.body == sse.whole(PUBLIC)
    assert answer.usage == Usage(3, 2)
    assert not answer.aborted


def test_text_of_a_whole_answer_is_not_renamed() -> None:
    text = f'"model":"{BOT_V1}"'
    assert read_whole(sse.whole(BOT_V1, text), RENAMING).body == sse.whole(PUBLIC, text)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"1", b"null", b'{"a":', b'{"a":NaN}', b"\xff", b"{}{}"])
def test_whole_answer_that_is_no_json_object_is_bad(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_whole(body, RENAMING)


@pytest.mark.parametrize(
    ("reason", "tokens", "aborted"),
    [("abort", 0, True), ("error", 0, True), ("abort", 1, False), ("stop", 0, False), ("length", 0, False)],
)
def test_an_answer_dropped_before_its_first_token(reason: str, tokens: int, aborted: bool) -> None:
    assert read_whole(sse.whole(BOT_V1, "", reason, tokens), RENAMING).aborted is aborted


# errors


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":{"message":"m","param":"p"}}', ("m", "p")),
        (b'{"error":{"message":"m","param":null}}', ("m", None)),
        (b'{"message":"m"}', ("m", None)),
        (b'{"error":"Unauthorized"}', ("Unauthorized", None)),
        (b'"text"', ("text", None)),
        (b'{"error":{"message":1,"param":[]}}', ("", None)),
        (b'{"error":null}', ("", None)),
        (b"[]", ("", None)),
        (b"<html>", ("", None)),
        (b"", ("", None)),
    ],
)
def test_engine_errors_of_any_shape(body: bytes, expected: tuple[str, str | None]) -> None:
    assert engine_error(body) == expected


@pytest.mark.parametrize("reason", ["stop", "abort", "error", None])
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("choices", [1, 2])
def test_large_answer_is_read_like_a_small_one(reason: str | None, tokens: int, choices: int) -> None:
    """A large answer is not parsed into objects, which would need eight times its size."""
    choice: dict[str, Any] = {"index": 0, "message": {"content": "x"}, "finish_reason": reason}
    usage = {"prompt_tokens": 7, "completion_tokens": tokens}
    answer = {"model": "engine", "choices": [choice] * choices, "usage": usage}
    renaming = Renaming("engine", "acme/bot")
    small = read_whole(sse.compact(answer), renaming)
    large = read_whole(sse.compact({**answer, "x": [{"y": 1}] * 10_000}), renaming)
    assert (large.usage, large.aborted) == (small.usage, small.aborted)
    assert b'"model":"acme/bot"' in large.body and len(large.body) > 70_000


@pytest.mark.parametrize("body", [b"[%b]", b'{"a":%b', b'{"a":[1,]%b}', b'{"a":NaN}%b'])
def test_large_answer_that_is_no_object_is_bad(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_whole(body % (b" " * 70_000), Renaming("engine", "acme/bot"))


@pytest.mark.parametrize("choices", [b"null", b'"x"', b"[1]", b"[]", b'{"finish_reason":"abort"}'])
def test_choices_of_any_shape_in_a_large_answer(choices: bytes) -> None:
    body = b'{"choices":%b,"usage":5}%b' % (choices, b" " * 70_000)
    assert read_whole(body, Renaming("a", "a")).aborted is False


def test_deeply_nested_answer_is_bad_and_has_no_usage() -> None:
    deep = b"[" * 50_000 + b"]" * 50_000  # Python 3.13 reads 5,000
    assert read_usage(b'{"x":%b}' % deep) is None
    with pytest.raises(BadAnswer):
        read_whole(b'{"x":%b,"y":"%b"}' % (deep, b"a" * 1_000_000), RENAMING)
    with pytest.raises(BadAnswer):
        read_whole(b'{"choices":[{"x":%b}],"y":"%b"}' % (deep, b"a" * 1_000_000), RENAMING)
