"""Errors in the form that OpenAI clients expect: `{"error": {"message", "type", "param", "code"}}`.

Code raises `RequestRejected` anywhere; one edge converts it to bytes. A message says what to do. It contains no
secret, and contains text of the caller only after `quote` has shortened and cleaned it.
"""

from dataclasses import dataclass

import orjson

from functions.gateway.http.sink import MoreHeaders


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> bytes:
        return orjson.dumps({"error": self._error()})

    def event(self) -> bytes:
        """Return the error as a server-sent event for a stream that has begun. No `[DONE]` follows it."""
        return b"data: " + self.body() + b"\n\n"

    def _error(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


class RequestRejected(Exception):
    """The request ends here with this answer."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class OverQuota(RequestRejected):
    """A tenant's own limit is exceeded. `dimension` is a metric label, one of QuotaLimits' names."""

    def __init__(self, answer: ErrorAnswer, dimension: str, headers: MoreHeaders = ()) -> None:
        super().__init__(answer)
        self.dimension = dimension
        self.headers = headers


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> RequestRejected:
    return RequestRejected(ErrorAnswer(400, "invalid_request_error", code, message, param))


def unauthorized() -> RequestRejected:
    """Return the 401 for a bad API key, the same for all reasons, so that it does not reveal which keys exist."""
    message = (
        "Incorrect API key provided: it is missing, malformed, unknown, revoked or expired. "
        "Send 'Authorization: Bearer <key>'."  # clients search for this phrase and the type
    )
    return RequestRejected(ErrorAnswer(401, "authentication_error", "invalid_api_key", message))


def forbidden(message: str, code: str = "insufficient_permissions") -> RequestRejected:
    return RequestRejected(ErrorAnswer(403, "invalid_request_error", code, message))


def model_not_found(requested: str) -> RequestRejected:
    message = (
        f"The model {quote(requested)} does not exist or this key may not use it. GET /v1/models lists its models."
    )
    return RequestRejected(ErrorAnswer(404, "invalid_request_error", "model_not_found", message, "model"))


# Alternatives for paths that clients of vLLM and OpenAI know and that do not exist here.
_INSTEAD = {
    "/pooling": "Use /v1/embeddings for vectors, /v1/classify for classes and /v1/score for scores.",
    "/v2/embed": "Use /v1/embeddings.",
    "/v1/moderations": "No moderation model is built in. Send texts to a classifier of your own at /v1/classify.",
    "/v1/uploads": "Upload the complete file to /v1/files.",
    "/v1/messages/batches": "Create batches at /v1/batches; their lines may use /v1/chat/completions.",
    "/v1/audio/transcriptions": "Transcription is not built in. Send input_audio to a chat model that accepts audio.",
    "/v1/audio/translations": "Transcription is not built in. Send input_audio to a chat model that accepts audio.",
    "/version": "Engine versions differ between models; GET /v1/models describes each model.",
}
_STORED = {
    "/v1/responses/": "Responses are not stored, so they cannot be read or cancelled. Close the connection to end one.",
    "/v1/chat/completions/": "Chat completions are not stored.",
    "/v1/uploads/": _INSTEAD["/v1/uploads"],
    "/v1/messages/batches/": _INSTEAD["/v1/messages/batches"],
}


def not_found(method: str, path: str) -> ErrorAnswer:
    below = (words for start, words in _STORED.items() if path.startswith(start))
    where = _INSTEAD.get(path) or next(below, "The API is under /v1.")
    message = f"There is no {quote(method)} {quote(path)} here. {where}"
    return ErrorAnswer(404, "invalid_request_error", "not_found", message)


def method_not_allowed(method: str, path: str) -> ErrorAnswer:
    message = f"{quote(path)} does not accept the method {quote(method)}."
    return ErrorAnswer(405, "invalid_request_error", "method_not_allowed", message)


def body_too_large(limit_bytes: int) -> ErrorAnswer:
    message = f"The request body is over the limit of {limit_bytes} bytes. Send less, for example a shorter prompt."
    return ErrorAnswer(413, "invalid_request_error", "body_too_large", message)


def unsupported_media_type(message: str) -> ErrorAnswer:
    return ErrorAnswer(415, "invalid_request_error", "unsupported_media_type", message)


def headers_too_large(message: str) -> ErrorAnswer:
    return ErrorAnswer(431, "invalid_request_error", "headers_too_large", message)


def request_timeout(what: str) -> ErrorAnswer:
    return ErrorAnswer(
        408, "invalid_request_error", "request_timeout", f"{what} took too long to arrive. Send it again."
    )


def unavailable(message: str, code: str, retry_after_s: int | None) -> ErrorAnswer:
    return ErrorAnswer(503, "server_error", code, message, retry_after_s=retry_after_s)


def bad_gateway(message: str, code: str = "upstream_failed") -> ErrorAnswer:
    return ErrorAnswer(502, "server_error", code, message)


DEADLINE_EXCEEDED = "deadline_exceeded"


def deadline_exceeded(message: str) -> ErrorAnswer:
    return ErrorAnswer(504, "server_error", DEADLINE_EXCEEDED, message)


def arrived_too_late() -> ErrorAnswer:
    return deadline_exceeded(
        "The deadline passed before the whole request arrived. Send it again with a longer X-Shoal-Deadline-Ms."
    )


ANSWER_TOO_LARGE = "answer_too_large"


def answer_too_large(detail: str) -> ErrorAnswer:
    message = (
        f"The request produces {detail}, which is too large to relay. Request less at a time: fewer inputs, "
        "choices, tokens or log probabilities; for embeddings, encoding_format 'base64' or fewer dimensions."
    )
    return ErrorAnswer(400, "invalid_request_error", ANSWER_TOO_LARGE, message)


NO_ROOM_FOR_ANSWER = "no_room_for_answer"
MADE_IN_VAIN = frozenset((ANSWER_TOO_LARGE, NO_ROOM_FOR_ANSWER))  # the engine has computed the whole answer


def no_room_for_answer(after_s: int) -> ErrorAnswer:
    message = (
        "The gateway's buffer for large answers is full (your share or all of it). Read answers as they arrive, "
        f"request less at a time (choices, log probabilities, inputs), and try again in {after_s} s."
    )
    return unavailable(message, NO_ROOM_FOR_ANSWER, after_s)


def upstream_lost() -> ErrorAnswer:
    message = "The replica was lost during the answer, so the answer is incomplete. Send the request again."
    return ErrorAnswer(502, "server_error", "upstream_lost", message)


def engine_failed() -> ErrorAnswer:
    message = "The engine reported an error during the answer, so the answer is incomplete. Send the request again."
    return ErrorAnswer(502, "server_error", "upstream_failed", message)


def restarting() -> ErrorAnswer:
    message = (
        "The gateway is restarting and ended this request; any answer so far is incomplete. Send the request again."
    )
    return ErrorAnswer(503, "server_error", "restarting", message, retry_after_s=1)


def internal_error() -> ErrorAnswer:
    message = "The gateway failed on this request. Send it again; if it persists, report the x-request-id."
    return ErrorAnswer(500, "server_error", "internal_error", message)


def quote(text: str, limit: int = 100) -> str:
    """Return a caller's text in quotes, cut to `limit` characters, with unprintable ones replaced."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "'" + "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short) + "'"
