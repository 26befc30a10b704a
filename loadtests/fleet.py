"""The fleet that `shoal env` names: endpoint, one key per tenant, and the models that each key may call."""

import os
import ssl
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    task: str  # generate, embed, …: the pool's label shoal.dev/task
    window_tokens: int  # maximum context for this tenant


@dataclass(frozen=True, slots=True)
class Tenant:
    api_key: str
    models: tuple[Model, ...]

    def of_task(self, task: str) -> tuple[Model, ...]:
        return tuple(model for model in self.models if model.task == task)


class NotConfigured(Exception):
    """The environment names no usable fleet; the message says how to name one."""


class Unanswered(Exception):
    """A gateway does not list models for a key; the message has the address and the reason."""


def base_url() -> str:
    url = os.environ.get("OPENAI_BASE_URL", "")
    if not url:
        raise NotConfigured('OPENAI_BASE_URL is not set: start a fleet with `make up`, then `eval "$(shoal env)"`')
    return url.rstrip("/")


def api_keys() -> list[str]:
    """Return every key in SHOAL_API_KEYS (comma-separated), or else the one in OPENAI_API_KEY."""
    several = [key.strip() for key in os.environ.get("SHOAL_API_KEYS", "").split(",") if key.strip()]
    keys = several or [key for key in [os.environ.get("OPENAI_API_KEY", "")] if key]
    if not keys:
        raise NotConfigured('OPENAI_API_KEY is not set: `eval "$(shoal env)"` sets it')
    return keys


def discover(verify: ssl.SSLContext) -> list[Tenant]:
    """Return each key with the models that are ready for it. Raise NotConfigured or Unanswered."""
    found = []
    with httpx.Client(timeout=30.0, verify=verify) as client:
        for key in api_keys():
            try:
                answer = client.get(f"{base_url()}/models", headers={"authorization": f"Bearer {key}"})
                answer.raise_for_status()
            except httpx.HTTPError as error:
                raise Unanswered(f"{base_url()}/models: {error}") from error
            ready = tuple(_model(model) for model in answer.json()["data"] if model["capacity"]["ready"])
            if ready:
                found.append(Tenant(key, ready))
    if not found:
        raise NotConfigured("no model is ready for any key; `shoal status` says why")
    return found


def _model(listed: dict[str, Any]) -> Model:
    return Model(str(listed["id"]), str(listed["task"]), int(listed["context_window"]))
