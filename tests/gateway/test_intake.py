"""Intake: which caller, which service class, which version answers, and what the engine receives."""

import json
import time
from typing import Any

import pytest

from functions.decisions.catalogue import Catalogue
from functions.gateway.errors import RequestRejected
from functions.gateway.intake.intake import Intake, RawRequest, _upstream_body
from functions.gateway.intake.routes import CHAT, COMPLETIONS, DETOKENIZE, ROUTES, TOKENIZE, Route
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, BATCH_KEY, BOT_V1, BOT_V2, GLOBEX_KEY, NOW_UNIX_S, PEPPER, POOL

CATALOGUE = rig.catalogue()
INTAKE = Intake(PEPPER, rig.limits(), Splits(time.monotonic))
MESSAGES = [{"role": "user", "content": "hi"}]


def admit(
    body: dict[str, Any] | bytes | None = None, key: str | None = ACME_KEY, route: Route = CHAT, **headers: str
) -> Admitted:
    document = body if body is not None else {"model": "acme/bot", "messages": MESSAGES}
    sent = document if isinstance(document, bytes) else json.dumps(document).encode()
    return through(RawRequest("req-1", rig.headers(key, **headers), sent), route)


def through(raw: RawRequest, route: Route = CHAT, catalogue: Catalogue = CATALOGUE) -> Admitted:
    return INTAKE.admit(catalogue, route, raw, INTAKE.recognise(catalogue, raw, NOW_UNIX_S))


def refusal(*args: Any, **kwargs: Any) -> tuple[int, str]:
    with pytest.raises(RequestRejected) as refused:
        admit(*args, **kwargs)
    return refused.value.answer.status, refused.value.answer.code


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "acme/bot", "messages": MESSAGES, **fields}


def sent(admitted: Admitted) -> dict[str, Any]:
    forwarded: dict[str, Any] = json.loads(admitted.upstream_body)
    return forwarded


# the caller


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic " + ACME_KEY,
        ACME_KEY,
        "Bearer " + ACME_KEY[:-1],
        "Bearer " + ACME_KEY[:-1] + ("0" if ACME_KEY[-1] != "0" else "1"),
        "Bearer " + ACME_KEY + "x",
        "Bearer " + ACME_KEY + " " + ACME_KEY,
        "Bearer " + ACME_KEY.upper(),
        "Bearer x" * 1000,
        "Bearer " + rig.REVOKED_KEY,
        "Bearer " + rig.EXPIRED_KEY,
        "Bearer " + rig.IMPOSTOR_KEY,
        "Bearer \u00e9",
    ],
)
def test_every_wrong_key_gets_the_same_answer(authorization: str) -> None:
    headers = [*rig.headers(None), (b"authorization", authorization.encode("latin-1"))]
    with pytest.raises(RequestRejected) as refused:
        through(RawRequest("r", headers, b"{}"))
    with pytest.raises(RequestRejected) as without:
        through(RawRequest("r", rig.headers(None), b"{}"))
    assert refused.value.answer == without.value.answer
    assert refused.value.answer.status == 401
    assert ACME_KEY[10:] not in refused.value.answer.message


def test_key_identifies_its_tenant() -> None:
    assert admit().caller.tenant == "acme"
    assert admit({"model": "globex/bot", "messages": MESSAGES}, GLOBEX_KEY).caller.tenant == "globex"


def test_bearer_is_not_case_sensitive() -> None:
    headers = [*rig.headers(None), (b"authorization", b"bearer " + ACME_KEY.encode())]
    body = json.dumps(chat()).encode()
    assert through(RawRequest("r", headers, body)).caller.key_id == "acme-ci"


def test_a_key_without_the_scope_is_forbidden() -> None:
    assert refusal(key=rig.READER_KEY) == (403, "insufficient_permissions")


def test_key_is_checked_before_the_body() -> None:
    assert refusal(b"not json", key=None) == (401, "invalid_api_key")


# service class


@pytest.mark.parametrize(
    ("key", "headers", "fields", "expected"),
    [
        (ACME_KEY, {}, {}, "interactive"),
        (BATCH_KEY, {}, {}, "batch"),
        (ACME_KEY, {"x_shoal_class": "batch"}, {}, "batch"),
        (ACME_KEY, {"x_shoal_class": "near-real-time"}, {"service_tier": "flex"}, "near-real-time"),
        (ACME_KEY, {}, {"service_tier": "flex"}, "batch"),
        (ACME_KEY, {}, {"service_tier": "priority"}, "interactive"),
        (BATCH_KEY, {}, {"service_tier": "default"}, "batch"),
        (BATCH_KEY, {}, {"service_tier": "flex"}, "batch"),
    ],
)
def test_service_class_of_request_and_key(
    key: str, headers: dict[str, str], fields: dict[str, Any], expected: str
) -> None:
    assert admit(chat(**fields), key, **headers).service_class == expected


@pytest.mark.parametrize(
    ("headers", "fields"), [({"x_shoal_class": "interactive"}, {}), ({}, {"service_tier": "priority"})]
)
def test_a_class_above_the_keys_is_forbidden(headers: dict[str, str], fields: dict[str, Any]) -> None:
    assert refusal(chat(**fields), BATCH_KEY, **headers) == (403, "class_not_allowed")


# the model


@pytest.mark.parametrize(
    ("requested", "served_as", "engine"),
    [
        ("acme/bot", "acme/bot@v1", BOT_V1),
        ("acme/bot:stable", "acme/bot@v1", BOT_V1),
        ("acme/bot:canary", "acme/bot@v2", BOT_V2),
        ("acme/bot@v2", "acme/bot@v2", BOT_V2),
        (f"acme/bot@{rig.DIGEST_V2}", "acme/bot@v2", BOT_V2),
        (POOL, f"{POOL}@v1", POOL),
    ],
)
def test_a_reference_names_one_version(requested: str, served_as: str, engine: str) -> None:
    admitted = admit(chat(model=requested))
    assert admitted.model.served_as == served_as
    assert sent(admitted)["model"] == engine


@pytest.mark.parametrize(
    "requested",
    [
        "globex/bot",  # another tenant's
        f"globex/bot@{rig.DIGEST_V1}",
        "acme/none",
        "acme/bot:none",
        "acme/bot@v9",
        f"acme/bot@sha256:{'00' * 32}",
        BOT_V1,  # the engine's own name for it
        "acme/bot@v1@v2",
        "acme/bot:stable:stable",
        "ACME/bot",
        "acme/bot ",
        "acme/bot\n",
        "acme//bot",
        "../acme/bot",
        "acme/bot\x00",
        "x" * 10_000,
        "\u0430cme/bot",  # a Cyrillic a
    ],
)
def test_forbidden_and_unknown_models_answer_404(requested: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        admit(chat(model=requested))
    answer = refused.value.answer
    assert (answer.status, answer.code, answer.param) == (404, "model_not_found", "model")
    assert len(answer.message) < 300 and "\n" not in answer.message


def test_forbidden_and_unknown_models_get_the_same_message() -> None:
    messages = []
    for requested in ("globex/bot", "globex/no9"):
        with pytest.raises(RequestRejected) as refused:
            admit(chat(model=requested))
        messages.append(refused.value.answer.message.replace(requested, "…"))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("model", [None, "", 1, True, [], {}, ["acme/bot"]])
def test_a_model_is_a_string(model: Any) -> None:
    assert refusal(chat(model=model)) == (400, "invalid_request")


def test_a_model_is_required() -> None:
    assert refusal({"messages": MESSAGES}) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"prompt": "x"}),
        (CHAT, {"messages": None}),
        (COMPLETIONS, {"messages": MESSAGES}),
        (TOKENIZE, {}),
        (DETOKENIZE, {"prompt": "x"}),
    ],
)
def test_each_route_has_its_required_field(route: Route, body: dict[str, Any]) -> None:
    assert refusal({"model": "acme/bot", **body}, route=route) == (400, "invalid_request")


# the engine's request


def test_cache_salt_is_secret_per_tenant() -> None:
    mine = sent(admit(chat(cache_salt="stolen")))["cache_salt"]
    again = sent(admit(chat()))["cache_salt"]
    assert mine == again != "stolen"
    assert len(mine) == 32 and "acme" not in mine
    other = Intake(b"q" * 32, rig.limits(), Splits(time.monotonic))
    assert other._salt_of(CATALOGUE.tenants["acme"].name) != mine, "it needs the pepper"  # type: ignore[index]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_carries_the_tenants_salt(route: Route) -> None:
    """Gateways enforce a tenant's `isolation`, whatever the pool and its engine's task."""
    admitted = admit()
    body: dict[str, Any] = {"messages": MESSAGES, "input": "x", "cache_salt": "stolen"}
    upstream = json.loads(_upstream_body(body, admitted.model, route, False, "the tenant's"))
    assert upstream["cache_salt"] == "the tenant's"


def test_tenant_with_shared_cache_has_no_salt() -> None:
    body = {"model": "globex/bot", "messages": MESSAGES, "cache_salt": "mine"}
    assert "cache_salt" not in sent(admit(body, GLOBEX_KEY))


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_stream_always_requests_usage(options: dict[str, bool] | None) -> None:
    admitted = admit(chat(stream=True, stream_options=options))
    assert sent(admitted)["stream_options"]["include_usage"] is True
    assert admitted.include_usage is bool((options or {}).get("include_usage"))


def test_other_stream_options_pass_on() -> None:
    assert sent(admit(chat(stream=True, stream_options={"continuous_usage_stats": True})))["stream_options"] == {
        "continuous_usage_stats": True,
        "include_usage": True,
    }


def test_whole_answer_has_no_stream_options() -> None:
    admitted = admit(chat(stream=False))
    assert "stream_options" not in sent(admitted)
    assert not admitted.stream


def test_fields_pass_on_as_they_were_checked() -> None:
    said = b'[{"role":"user","content":"\\u00e9"}]'
    body = b' {"model": "acme/bot", "messages": %b, "documents": [{"a": [1, 2.50, null]}]} ' % said
    forwarded = sent(admit(body))
    assert forwarded["documents"] == [{"a": [1, 2.5, None]}]
    assert forwarded["messages"][0]["content"] == "\u00e9"


def test_tokenize_never_streams() -> None:
    admitted = admit({"model": "acme/bot", "prompt": "x", "stream": True}, route=TOKENIZE)
    assert not admitted.stream


def test_a_deadline_is_kept() -> None:
    assert admit(x_shoal_deadline_ms="1500").deadline_ms == 1500


# before the body


def precheck_refusal(headers: list[tuple[bytes, bytes]]) -> tuple[int, str]:
    with pytest.raises(RequestRejected) as refused:
        INTAKE.precheck(CATALOGUE, headers, NOW_UNIX_S)
    return refused.value.answer.status, refused.value.answer.code


def test_body_is_refused_by_its_headers() -> None:
    assert precheck_refusal(rig.headers(content_length=str(4 * 1024 * 1024 + 1))) == (413, "body_too_large")
    assert precheck_refusal(rig.headers(None)) == (401, "invalid_api_key")
    assert precheck_refusal([*rig.headers(None)[:1]]) == (415, "unsupported_media_type")
    INTAKE.precheck(CATALOGUE, rig.headers(content_length=str(4 * 1024 * 1024)), NOW_UNIX_S)


def test_headers_alone_and_whole_request_are_refused_alike() -> None:
    for headers in (
        [],
        rig.headers(None)[:1],
        rig.headers(None),
        rig.headers(rig.READER_KEY),
        [*rig.headers(), (b"host", b"b")],
    ):
        with pytest.raises(RequestRejected) as refused:
            through(RawRequest("r", headers, b""))
        assert precheck_refusal(headers) == (refused.value.answer.status, refused.value.answer.code)
