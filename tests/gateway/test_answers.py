"""Answers and errors as they are sent to engines and clients."""

import dataclasses
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.routing.choice import NoReplica
from functions.decisions.routing.retry import AttemptFailure
from functions.fleet.heartbeat import to_view
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer
from functions.gateway.request import replies
from functions.gateway.request.answers import Renaming
from functions.gateway.request.request import Admitted, Timeline
from functions.gateway.routing.adapter_loads import ColdFailed, ColdOutcome
from tests.gateway.rig import BOT_V1, DIGEST_V1, DIGEST_V2, POOL, heartbeat
from tests.gateway.test_intake import admit, chat

ADMITTED = admit(chat(stream=True), x_request_id="ignored: the wire's id counts")
REPLICA = to_view(heartbeat("r0", 1234))
RENAMING = Renaming(BOT_V1, "acme/bot")


def test_engine_gets_only_headers_made_by_the_gateway() -> None:
    head, _, body = replies.upstream_request(ADMITTED, REPLICA, 1_800_000_000.0).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/chat/completions HTTP/1.1"
    assert sorted(line.split(b":")[0] for line in lines[1:]) == [
        b"content-length",
        b"content-type",
        b"host",
        b"traceparent",
        b"x-request-id",
        b"x-vllm-priority",
    ]
    assert int(dict(line.split(b": ") for line in lines[1:])[b"content-length"]) == len(body)
    assert orjson.loads(body)["model"] == BOT_V1


@pytest.mark.parametrize(
    ("host", "named"),
    [("10.0.0.7", b"10.0.0.7:1234"), ("fd00::7", b"[fd00::7]:1234"), ("localhost", b"localhost:1234")],
)
def test_host_header_brackets_an_ipv6_address(host: str, named: bytes) -> None:
    """RFC 9110 (7.2): a strict server answers 400 to `host: fd00::7:1234`."""
    replica = dataclasses.replace(REPLICA, host=host)
    head = replies.upstream_request(ADMITTED, replica, 1_800_000_000.0).partition(b"\r\n\r\n")[0]
    assert dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])[b"host"] == named


def test_answer_headers() -> None:
    timeline = Timeline(1.0, admitted_s=1.001, routed_s=1.002, connected_s=1.003, first_token_s=1.1)
    found = dict(replies.headers(ADMITTED, REPLICA, timeline, b"text/event-stream"))
    assert found[b"x-request-id"] == b"req-1"
    assert found[b"x-shoal-model"] == b"acme/bot@v1"
    assert found[b"x-shoal-digest"] == DIGEST_V1.encode()
    assert found[b"x-shoal-replica"] == b"r0"
    timing = b"auth;dur=1.00, queue;dur=0.00, route;dur=1.00, connect;dur=1.00, ttft;dur=100.00"
    assert found[b"server-timing"] == timing
    assert found[b"cache-control"] == b"no-store"


def of_base(replica_weights: str) -> tuple[bytes, bytes]:
    """Return the model and digest headers of a base's answer if its replica has loaded these weights."""
    replica = to_view(heartbeat("r0", 1234, weights_digest=replica_weights))
    found = dict(replies.headers(admit(chat(model=POOL)), replica, Timeline(1.0), b"application/json"))
    return found[b"x-shoal-model"], found[b"x-shoal-digest"]


def test_base_answer_names_the_weights_its_replica_loaded() -> None:
    """While a pool restarts replica by replica, the snapshot names weights that only some replicas have."""
    assert of_base(DIGEST_V1) == (f"{POOL}@v1".encode(), DIGEST_V1.encode())
    assert of_base(DIGEST_V2) == (f"{POOL}@{DIGEST_V2}".encode(), DIGEST_V2.encode()), "no version has that name"
    assert of_base("") == (f"{POOL}@v1".encode(), DIGEST_V1.encode()), "an older agent: what is declared"


def test_adapter_answer_names_the_adapter() -> None:
    replica = to_view(heartbeat("r0", 1234, weights_digest=DIGEST_V2))
    found = dict(replies.headers(ADMITTED, replica, Timeline(1.0), b"application/json"))
    assert (found[b"x-shoal-model"], found[b"x-shoal-digest"]) == (b"acme/bot@v1", DIGEST_V1.encode())


def test_unreached_steps_take_no_time_in_server_timing() -> None:
    assert b"ttft;dur=0.00" in Timeline(5.0).server_timing()


@pytest.mark.parametrize(
    ("failures", "status", "code"),
    [
        ((AttemptFailure.OVERLOADED,), 503, "overloaded"),
        ((AttemptFailure.RESET, AttemptFailure.OVERLOADED), 503, "overloaded"),
        ((AttemptFailure.ADAPTER_MISSING,), 503, "model_not_ready"),
        ((AttemptFailure.FIRST_BYTE,), 504, "deadline_exceeded"),
        ((AttemptFailure.CONNECT,), 502, "upstream_failed"),
        ((AttemptFailure.RESET, AttemptFailure.RESET, AttemptFailure.RESET), 502, "upstream_failed"),
        ((AttemptFailure.ENGINE_ERROR,), 502, "upstream_failed"),
        ((AttemptFailure.BAD_ANSWER,), 502, "upstream_failed"),
        ((AttemptFailure.ABORTED,), 502, "upstream_failed"),
        ((AttemptFailure.REPLICA_LOST,), 502, "upstream_failed"),
    ],
)
def test_failures_map_to_status_and_code(failures: tuple[AttemptFailure, ...], status: int, code: str) -> None:
    answer = replies.all_failed(failures, False, ADMITTED)
    assert (answer.status, answer.code) == (status, code)
    assert (answer.retry_after_s is not None) == (status == 503)
    assert replies.all_failed(failures, True, ADMITTED).status == 504


@pytest.mark.parametrize("failure", AttemptFailure)
def test_every_failure_has_an_answer(failure: AttemptFailure) -> None:
    assert replies.all_failed((failure,), False, ADMITTED).status in (502, 503, 504)


def test_no_replica_answers_503_or_502_after_failures() -> None:
    empty = replies.no_replica(NoReplica("pool_empty"), (), ADMITTED)
    assert (empty.status, empty.code) == (503, "no_capacity")
    after = replies.no_replica(NoReplica("all_tried"), (AttemptFailure.CONNECT,), ADMITTED)
    assert (after.status, after.code) == (502, "upstream_failed")


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("refused", "model_unavailable"),
        ("slow", "model_not_ready"),
        ("no_replica", "model_not_ready"),
        ("failed", "model_not_ready"),
        ("no_room", "overloaded"),
        ("too_many", "overloaded"),
    ],
)
def test_cold_load_failures_map_to_codes(outcome: ColdOutcome, code: str) -> None:
    answer = replies.not_loaded(ColdFailed(outcome, "the rank is 64"), ADMITTED)
    assert (answer.status, answer.code) == (503, code)
    assert ADMITTED.model.served_as in answer.message
    assert (answer.retry_after_s is None) == ("the rank is 64" in answer.message) == (outcome == "refused")


def test_retry_after_is_spread_over_callers() -> None:
    waits = {replies._retry_after_s(admit_as(f"r{i}")) for i in range(200)}
    assert waits == {1, 2, 3, 4}


def admit_as(request_id: str) -> Admitted:
    return type(ADMITTED)(
        **{**{name: getattr(ADMITTED, name) for name in type(ADMITTED).__slots__}, "request_id": request_id}
    )


def engine_body(message: str) -> bytes:
    return json.dumps(
        {"error": {"message": message, "type": "BadRequestError", "param": "max_tokens", "code": 400}}
    ).encode()


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_callers_mistake_is_passed_on_under_its_own_name(status: int) -> None:
    answer = replies.engine_refusal(status, engine_body(f"`{BOT_V1}` is too small"), RENAMING)
    assert answer == ErrorAnswer(
        400, "invalid_request_error", "invalid_request", "`acme/bot` is too small", "max_tokens"
    )


def test_a_full_context_has_its_own_code() -> None:
    message = "This model's maximum context length is 2048 tokens."
    answer = replies.engine_refusal(400, engine_body(message), RENAMING)
    assert isinstance(answer, ErrorAnswer)
    assert answer.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        (
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "tools_not_offered",
            "tools",
        ),
        ('tool_choice="required" requires --tool-call-parser to be set', "tools_not_offered", "tools"),
        ("thinking_token_budget: set --reasoning-parser and/or --reasoning-config", "not_offered", "max_tokens"),
        ("Logprobs: Set max_logprobs (--max-logprobs) to at least 25.", "not_offered", "max_tokens"),
    ],
)
def test_engine_options_are_hidden_from_callers(message: str, code: str, param: str) -> None:
    answer = replies.engine_refusal(400, engine_body(message), RENAMING)
    assert isinstance(answer, ErrorAnswer)
    assert (answer.status, answer.code, answer.param) == (400, code, param)
    assert "--" not in answer.message and "operator" in answer.message


def test_dashes_that_are_no_option_are_passed_on() -> None:
    answer = replies.engine_refusal(400, engine_body("no -- and no a--b, ---"), RENAMING)
    assert isinstance(answer, ErrorAnswer) and answer.message == "no -- and no a--b, ---"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]"])
def test_error_without_message_gets_one(body: bytes) -> None:
    answer = replies.engine_refusal(400, body, RENAMING)
    assert isinstance(answer, ErrorAnswer)
    assert answer.message


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (404, AttemptFailure.ADAPTER_MISSING),
        (429, AttemptFailure.OVERLOADED),
        (503, AttemptFailure.OVERLOADED),
        *((status, AttemptFailure.ENGINE_ERROR) for status in (500, 502, 504, 401, 403, 204, 302, 418)),
    ],
)
def test_other_statuses_are_failures_of_the_attempt(status: int, failure: AttemptFailure) -> None:
    assert replies.engine_refusal(status, b'{"error":{"message":"Valid aliases: globex/bot"}}', RENAMING) is failure


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error":{"code":400}}', 400),
        (b'{"error":{"code":599}}', 599),
        (b'{"error":{"code":200}}', 500),
        (b'{"error":{"code":"400"}}', 500),
        (b'{"error":{"code":true}}', 500),
        (b'{"error":"x"}', 500),
        (b"[]", 500),
        (b"x", 500),
    ],
)
def test_status_in_an_error_event(body: bytes, status: int) -> None:
    assert replies.status_in_error(body) == status


# the error shape


ALL_ERRORS = [
    errors.bad_request("m", "p").answer,
    errors.unauthorized().answer,
    errors.forbidden("m").answer,
    errors.model_not_found("x").answer,
    errors.not_found("GET", "/x"),
    errors.method_not_allowed("GET", "/x"),
    errors.body_too_large(1),
    errors.unsupported_media_type("m"),
    errors.headers_too_large("m"),
    errors.request_timeout("The body"),
    errors.unavailable("m", "c", 1),
    errors.bad_gateway("m"),
    errors.deadline_exceeded("m"),
    errors.upstream_lost(),
    errors.engine_failed(),
    errors.restarting(),
    errors.internal_error(),
]


@pytest.mark.parametrize("answer", ALL_ERRORS, ids=lambda answer: answer.code)
def test_every_error_has_openais_shape(answer: ErrorAnswer) -> None:
    shape = json.loads(answer.body())
    assert list(shape) == ["error"]
    assert sorted(shape["error"]) == ["code", "message", "param", "type"]
    assert answer.event() == b"data: " + answer.body() + b"\n\n"
    types = {401: "authentication_error"}
    default = "server_error" if answer.status >= 500 else "invalid_request_error"
    assert shape["error"]["type"] == types.get(answer.status, default)


def test_wrong_key_error_has_its_type_and_phrase() -> None:
    """Clients distinguish it from a bad request by its type or its phrase."""
    answer = errors.unauthorized().answer
    assert answer.type == "authentication_error" and answer.message.startswith("Incorrect API key provided")


def test_error_headers() -> None:
    assert (b"retry-after", b"3") in replies.error_headers("id", errors.unavailable("m", "c", 3))
    assert (b"www-authenticate", b"Bearer") in replies.error_headers("id", errors.unauthorized().answer)


@given(st.text(max_size=300))
def test_quote_is_short_printable_and_one_line(text: str) -> None:
    quoted = errors.quote(text)
    assert len(quoted) <= 102
    assert quoted.isprintable()
    if len(text) <= 100 and text.isprintable():
        assert quoted == f"'{text}'"


@given(st.text(max_size=50))
def test_error_event_is_one_event_for_any_message(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate cannot arrive over the wire
    event = errors.bad_request(text, text).answer.event()
    assert event.count(b"\n") == 2
