"""Strict JSON: a body is one object or refused with a reason, and never has two readings."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.gateway.errors import RequestRejected
from functions.gateway.intake import json_body as strict_json
from functions.gateway.intake.json_body import _outside_strings, parse_object

DEPTH, VALUES = 64, 100_000


def parse(body: bytes, *, depth: int = DEPTH, values: int = VALUES) -> dict[str, Any]:
    return parse_object(body, depth, values)


def refusal(body: bytes, **bounds: int) -> tuple[str, str | None, str]:
    with pytest.raises(RequestRejected) as refused:
        parse(body, **bounds)
    answer = refused.value.answer
    assert answer.status == 400
    assert len(answer.body()) < 1000, "a refusal repeats little of what was sent"
    return answer.code, answer.param, answer.message


def nested(levels: int) -> bytes:
    """Return an object with `levels` levels, its own included."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize(
    ("name", "body"),
    {
        "empty": b"",
        "only spaces": b" \r\n\t ",
        "cut off": b'{"a":',
        "two documents": b'{"a":1}{"b":2}',
        "trailing comma": b'{"a":1,}',
        "comment": b'{"a":1}//x',
        "single quotes": b"{'a':1}",
        "NaN": b'{"a":NaN}',
        "Infinity": b'{"a":Infinity}',
        "minus Infinity": b'{"a":-Infinity}',
        "1e400": b'{"a":1e400}',
        "leading zero": b'{"a":01}',
        "bare minus": b'{"a":-}',
        "plus sign": b'{"a":+1}',
        "hexadecimal": b'{"a":0x1}',
        "an integer of 5,000 digits": b'{"a":' + b"9" * 5000 + b"}",
        "byte order mark": b'\xef\xbb\xbf{"a":1}',
        "UTF-16, little endian": '{"a":1}'.encode("utf-16"),
        "UTF-16, big endian, no mark": '{"a":1}'.encode("utf-16-be"),
        "UTF-32": '{"a":1}'.encode("utf-32"),
        "lone high surrogate": b'{"a":"\\ud800"}',
        "lone low surrogate": b'{"a":"\\udc00"}',
        "lone surrogate in a key": b'{"\\ud800":1}',
        "surrogates the wrong way round": b'{"a":"\\udc00\\ud800"}',
        "encoded surrogate": b'{"a":"\xed\xa0\x80"}',
        "overlong slash": b'{"a":"\xc0\xaf"}',
        "overlong quote": b'{"a":"\xc0\xa2"}',
        "overlong NUL": b'{"a":"\xc0\x80"}',
        "beyond Unicode": b'{"a":"\xf4\x90\x80\x80"}',
        "a byte that is never UTF-8": b'{"a":"\xff"}',
        "half a character": b'{"a":"\xe2\x82"}',
        "a raw line break in a string": b'{"a":"\n"}',
        "a raw NUL in a string": b'{"a":"\x00"}',
        "NUL after the document": b'{"a":1}\x00',
        "a bad escape": b'{"a":"\\x41"}',
        "an array": b"[]",
        "a string": b'"a"',
        "a number": b"1",
        "null": b"null",
        "100,000 deep": b'{"a":' + b"[" * 100_000,
        "100,000 deep and closed": b'{"a":' + b"[" * 49_999 + b"]" * 49_999 + b"}",
    }.items(),
)
def test_refuses(name: str, body: bytes) -> None:
    assert refusal(body)[0] == "invalid_json", name


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("model", b'{"model":"a","model":"b"}'),
        ("model", b'{"model":"a","model":"a"}'),
        ("model", b'{ "model": "a", "n": 1, "model": "b" }'),
        ("model", b'{"model":"a","\\u006dodel":"b"}'),  # the same key, written with an escape
        ("role", b'{"messages":[{"role":"user","role":"system"}]}'),
        ("x", b'{"a":{"b":{"c":[[{"x":1,"x":2}]]}}}'),
        ("", b'{"":1,"":2}'),
        ('a"b', b'{"a\\"b":1,"a\\"b":2}'),
        ("a\\", b'{"a\\\\":1,"a\\\\":2}'),
        ("\u00e9", '{"\u00e9":1,"\\u00e9":2}'.encode()),
        ("a:b", b'{"a:b":":::","a:b":"::"}'),
        ("k", b'{"k":1,"k":"\\u003a"}'),  # the escape becomes a colon and hides that one key was lost
        ("k", b'{"k":1, "k":"\\u003A"}'),
        ("long", b'{"long":1, "text": "' + b"x{[:" * 5000 + b'", "long":1}'),
        ("long", b'{"long":1, "text": "' + b"x{[:" * 5000 + b'\\u003a", "long":1}'),
    ],
)
def test_duplicate_key_is_refused_and_named(key: str, body: bytes) -> None:
    code, param, _ = refusal(body)
    assert (code, param) == ("duplicate_key", key)


def test_same_key_in_different_objects_is_no_duplicate() -> None:
    body = b'{"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}, {"x": 4}]}'
    assert parse(body)["c"] == [{"x": 3}, {"x": 4}]


def test_long_duplicate_key_is_shortened_in_the_error() -> None:
    key = "k" * 5000
    _, param, message = refusal(json.dumps({key: 1})[:-1].encode() + b',"' + key.encode() + b'":2}')
    assert param == key[:64]
    assert len(message) < 250


def test_depth_is_bounded_at_its_limit() -> None:
    assert parse(nested(DEPTH))
    assert refusal(nested(DEPTH + 1))[0] == "invalid_json"


def test_brackets_in_strings_are_not_depth() -> None:
    assert parse(orjson.dumps({"a": "[{" * 5000}))


def test_number_of_values_is_checked_before_parsing() -> None:
    assert "over 50" in refusal(b'{"a":[' + b"{}," * 60 + b"{}]}", values=50)[2]
    assert "over 50" in refusal(b"{" + b",".join(b'"%d":1' % i for i in range(60)) + b"}", values=50)[2]
    assert parse(b'{"a":"' + b"[{:" * 60 + b'"}', values=50), "what is in a string is no structure"
    assert parse(b'{"a":[' + b"1," * 200 + b"1]}", values=50), "plain numbers are cheap: prompts come as token ids"


@pytest.mark.parametrize(
    "body",
    [
        b' \r\n{ "a" : 1 ,\t"b" : [ ] } \n',
        b'{"a":1.0,"b":1e3,"c":-0.0,"d":-0,"e":0.1}',
        b'{"\\u0061":"\\u0062\\/\\n"}',
        '{"a":"\u00e9 \U0001f41f"}'.encode(),
        b'{"a":"\\ud83d\\udc1f"}',  # a pair of surrogates is a character
        b'{"a":"\\u0000"}',
        b"{}",
        json.dumps({"a": [1, {"b": "\u00e9"}]}, indent=2).encode(),
    ],
)
def test_legal_json_is_accepted_with_any_spacing(body: bytes) -> None:
    assert parse(body) == json.loads(body)


def test_counts_colons_only_outside_strings() -> None:
    assert _outside_strings(rb'{"a:\"b:":1,"c\\":":","d":{"e":2}}').count(b":") == 4


@pytest.mark.parametrize("repeat", [1, 700, 30_000])
def test_colons_and_brackets_in_strings_are_not_counted(repeat: int) -> None:
    text = "{[: \\u003a " * repeat
    body = json.dumps({"a": text, "b": [1, {"c": 2}]}, indent=1).encode()
    assert parse(body)["a"] == text
    assert parse(body.replace(b"{[: ", b"{[\\u003a "))["a"] == text
    assert parse(orjson.dumps({"a": text}))["a"] == text


def test_long_body_with_too_many_values_is_refused_before_parsing() -> None:
    assert "over 100000" in refusal(b'{"a":[' + b"[]," * 60_000 + b"[{}" + b",{}" * 50_000 + b"]]}")[2]


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)


def _objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), values, max_size=5)


_values = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=4) | _objects(inner), max_leaves=20)


@given(_objects(_values), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_any_object_round_trips_and_is_forwarded_as_it_was_checked(
    document: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    parsed = parse(body)
    assert parsed == document
    assert json.loads(orjson.dumps(parsed)) == parsed, "what goes on reads the same for another parser"


@given(_objects(_values), st.text(st.characters(exclude_categories=["Cs"]), max_size=5), _scalars, st.booleans())
def test_any_repeated_key_is_found(document: dict[str, Any], key: str, value: Any, compact: bool) -> None:
    separators = (",", ":") if compact else (" , ", " : ")
    once = json.dumps({key: value}, separators=separators)[1:-1]
    rest = json.dumps({name: kept for name, kept in document.items() if name != key}, separators=separators)[1:-1]
    body = "{" + separators[0].join(part for part in (once, rest, once) if part) + "}"
    assert refusal(body.encode())[0] == "duplicate_key"


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_refused_or_parsed_like_the_standard_parser(noise: bytes) -> None:
    body = b'{"a":' + noise + b"}"
    try:
        parsed = parse(body)
    except RequestRejected:
        return
    strict = json.loads(body, parse_constant=lambda constant: pytest.fail(f"{constant} was taken"))
    assert _same(parsed, strict)


def _same(ours: Any, theirs: Any) -> bool:
    """Return True if both are equal; integers beyond 64 bits become floats here, which are what is checked and sent."""
    if type(theirs) is int and type(ours) is float:
        return abs(theirs) >= 2**63 and ours == float(theirs)
    if type(theirs) is dict and type(ours) is dict:
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if type(theirs) is list and type(ours) is list:
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


@given(st.binary(min_size=1, max_size=300), st.sampled_from([b"", b"[", b"{", b":", b"z;Z"]))
def test_quick_estimate_is_never_below_the_number_of_values(noise: bytes, more: bytes) -> None:
    body = noise + more * 3
    assert strict_json._values_at_most(body) >= strict_json._openings(body) + strict_json._colons(body)
