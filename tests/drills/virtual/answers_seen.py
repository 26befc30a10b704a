"""Answers of a run as clients read them: shape, end, text and usage of each outcome.

I3  one outcome    each client gets one well-formed end, or left
I3  text           a text is one engine's, of one version, without a gap or a repetition
"""

from collections.abc import Iterator
from typing import Any

import orjson

from functions.engines.sim.reply import adapter_mark
from tests.drills.virtual.clients import PATIENCE_S, Outcome
from tests.drills.virtual.fleet import Fleet
from tests.drills.virtual.gateway_node import LIMITS
from tests.gateway.rig import BOT_V1, BOT_V2, DIGEST_V1, DIGEST_V2, RIVAL

_REFUSALS = {408, 429, 502, 503, 504}

Breaches = Iterator[str]


def outcomes(fleet: Fleet) -> Breaches:
    for outcome in fleet.outcomes:
        request_id = outcome.plan.request_id
        if outcome.problem:
            yield f"{request_id}: {outcome.problem}"
        if outcome.ending == "unanswered":
            yield f"{request_id} had no end within {PATIENCE_S:.0f} s"
        elif outcome.ending == "cut" and not _may_be_cut(fleet, outcome):
            yield f"{request_id} was cut off after {len(outcome.body)} bytes"
        elif outcome.ending == "refused":
            yield from _refusal(outcome)
        elif outcome.ending == "broken":
            yield from _broken(outcome)
        if any("no_json" in event for event in _events(outcome)):
            yield f"{request_id} got an event that is no JSON"
        elif outcome.ending == "streamed" and not outcome.body.endswith(b"data: [DONE]\n\n"):
            yield f"{request_id}: something follows [DONE]"
        if outcome.status not in (0, 408) and outcome.headers.get("x-request-id", request_id) != request_id:
            yield f"{request_id} was answered as {outcome.headers.get('x-request-id')}"


def _may_be_cut(fleet: Fleet, outcome: Outcome) -> bool:
    """Return whether a cut has an excuse: a fault of its connection or gateway, its own delay, or the gateway never
    took the request.
    """
    if outcome.broken_by or outcome.gateway in fleet.crashed:
        return True
    if outcome.plan.reads_late_s > LIMITS.write_stall_s or outcome.plan.request_id not in fleet.witness.handled:
        return True
    return outcome.gateway in fleet.retired and not outcome.gateway.node.alive


def _refusal(outcome: Outcome) -> Breaches:
    request_id = outcome.plan.request_id
    if outcome.status not in _REFUSALS:
        yield f"{request_id} was refused with {outcome.status}: {outcome.body[:200]!r}"
        return
    error = orjson.loads(outcome.body).get("error")
    if type(error) is not dict or sorted(error) != ["code", "message", "param", "type"] or not error["message"]:
        yield f"{request_id} got an error of another shape: {outcome.body[:200]!r}"
    if outcome.status == 429 and "retry-after" not in outcome.headers:
        yield f"{request_id} got 429 without a Retry-After"


def _broken(outcome: Outcome) -> Breaches:
    events = _events(outcome)
    if not events or "error" not in events[-1]:
        yield f"{outcome.plan.request_id}: its stream ended without [DONE] and without an error"
    if any("error" in event for event in events[:-1]):
        yield f"{outcome.plan.request_id}: something follows the error event"


def texts(fleet: Fleet) -> Breaches:
    marks = _marks(fleet)
    for outcome in fleet.outcomes:
        if outcome.status != 200 or outcome.ending == "refused":
            continue
        text, finish, prints, model = _said(outcome)
        request_id, replica = outcome.plan.request_id, outcome.headers.get("x-shoal-replica", "")
        known = fleet.replicas[replica].fingerprints if replica in fleet.replicas else set()
        if len(prints) > 1 or not prints <= known:
            yield f"{request_id} from {replica} has pieces of {sorted(prints)}"
        if model - {outcome.plan.model, ""}:
            yield f"{request_id} for {outcome.plan.model} names {sorted(model)}"
        mark = marks.get(outcome.headers.get("x-shoal-digest", ""), {}).get(outcome.plan.tenant, "")
        is_degraded = "x-shoal-degraded" in outcome.headers
        expected = mark + " " if mark and outcome.plan.model.endswith("/bot") and not is_degraded else ""
        expected += outcome.plan.heard
        is_whole = finish == "stop"
        if finish is None and outcome.ending in ("answered", "streamed"):
            yield f"{request_id} has all of its answer, which has no end: {text[-80:]!r}"
        if (text != expected) if is_whole else not expected.startswith(text):
            yield f"{request_id} was told {text[:80]!r} ({finish}), not {expected[:80]!r}"


def _said(outcome: Outcome) -> tuple[str, str | None, set[str], set[str]]:
    """Return the text, how it ended, the engine fingerprints, and the models it names."""
    if outcome.ending == "answered":
        document = orjson.loads(outcome.body)
        choice = document["choices"][0]
        text = choice["message"]["content"] or ""
        return text, choice["finish_reason"], {document["system_fingerprint"]}, {document["model"]}
    text, finish = "", None
    events = [event for event in _events(outcome) if "error" not in event]
    for event in events:
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    prints = {event["system_fingerprint"] for event in events if event.get("system_fingerprint")}
    return text, finish, prints, {event.get("model", "") for event in events}


def _marks(fleet: Fleet) -> dict[str, dict[str, str]]:
    """Return the mark before an adapter's answers, by digest and tenant."""
    mark = {name: adapter_mark(name, fleet.adapters[name]) for name in (BOT_V1, BOT_V2, RIVAL)}
    return {DIGEST_V1: {"acme": mark[BOT_V1], "globex": mark[RIVAL]}, DIGEST_V2: {"acme": mark[BOT_V2]}}


def told_usage(outcome: Outcome) -> tuple[int, int, int] | None:
    documents = [orjson.loads(outcome.body)] if outcome.ending == "answered" else _events(outcome)
    for document in documents:
        usage = document.get("usage")
        if usage:
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            return (usage["prompt_tokens"], cached, usage["completion_tokens"])
    return None


def _events(outcome: Outcome) -> list[dict[str, Any]]:
    if outcome.ending not in ("streamed", "broken", "left", "cut") or outcome.status != 200 or not outcome.plan.stream:
        return []
    *whole, _ = outcome.body.split(b"\n\n")
    data = [part.removeprefix(b"data: ") for part in whole]
    return [_document(part) for part in data if part != b"[DONE]"]


def _document(part: bytes) -> dict[str, Any]:
    """Parse the data of an event; invalid data becomes an event without choices, marked `no_json`."""
    try:
        document = orjson.loads(part)
    except orjson.JSONDecodeError:
        document = None
    return document if type(document) is dict else {"choices": [], "no_json": part}
