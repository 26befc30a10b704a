"""Errors of the engine with vLLM's wording and shape: {"error":{"message","type","param","code"}}.

A client's mistake is 400, an unknown model 404, a full queue 503. Message texts are vLLM's own, because gateways and
people match on them. `routes` turns a Refusal into a response.
"""

import json
import re
from http import HTTPStatus
from typing import Any

_PATH = re.compile(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+|(?:/[\w\-]+)+/[\w\-]+\.\w+")


class EngineRefusal(Exception):
    """An error answer that the engine sends instead of a reply."""

    def __init__(self, message: str, *, kind: str, status: int, param: str | None = None, late: bool = False) -> None:
        super().__init__(message)
        self.message = message.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be encoded
        self.kind = kind
        self.status = status
        self.param = param
        self.late = late
        """True if the engine found the error after a stream began: the error is then its only event."""

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    def event(self) -> bytes:
        """Return the error as a stream event. vLLM writes this one with spaces."""
        return b"data: " + json.dumps(self.body()).encode() + b"\n\n"


def invalid(message: str, *, param: str | None = None, value: object = None, late: bool = False) -> EngineRefusal:
    """Return the refusal (400) of a request that fails vLLM's own checks, which come after the schema's."""
    extras = [f"parameter={param}"] if param is not None else []
    extras += [f"value={value}"] if value is not None else []
    text = f"{message} ({', '.join(extras)})" if extras else message
    return EngineRefusal(text, kind="BadRequestError", status=HTTPStatus.BAD_REQUEST, param=param, late=late)


def malformed(message: str, *, param: str | None) -> EngineRefusal:
    """Return the refusal (400) of a request that fails the schema."""
    return EngineRefusal(message, kind="Bad Request", status=HTTPStatus.BAD_REQUEST, param=param)


def unknown_model(model: str, *, aliases: tuple[str, ...]) -> EngineRefusal:
    message = f"The model `{model}` does not exist. Valid aliases: {', '.join(aliases)}."
    return EngineRefusal(message, kind="NotFoundError", status=HTTPStatus.NOT_FOUND, param="model")


def queue_full() -> EngineRefusal:
    return _unavailable("The engine is currently busy and cannot accept new requests.")


def prefill_backlog_full() -> EngineRefusal:
    return _unavailable("The engine has reached its prefill token backlog limit.")


def engine_dead() -> EngineRefusal:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return EngineRefusal(message, kind="InternalServerError", status=HTTPStatus.INTERNAL_SERVER_ERROR)


def bad_adapter_call(message: str) -> EngineRefusal:
    return EngineRefusal(message, kind="InvalidUserInput", status=HTTPStatus.BAD_REQUEST)


def adapter_missing(message: str) -> EngineRefusal:
    return EngineRefusal(_without_paths(message), kind="NotFoundError", status=HTTPStatus.NOT_FOUND)


def adapter_broken(reason: str) -> EngineRefusal:
    message = (
        f"Call to add_lora method failed: Worker failed with error '{reason}', "
        "please check the stack trace above for the root cause"
    )
    return EngineRefusal(_without_paths(message), kind="InternalServerError", status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _unavailable(message: str) -> EngineRefusal:
    text = f"{message} Please try again later or on a different instance."
    return EngineRefusal(text, kind="Service Unavailable", status=HTTPStatus.SERVICE_UNAVAILABLE)


def _without_paths(message: str) -> str:
    """Return the message with `<path>` for each file path, because vLLM discloses none to clients."""
    return _PATH.sub("<path>", message)
