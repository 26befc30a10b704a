"""Client for adapter loads of an agent: `POST /adapters/load` at its peer port, with a credential derived for that
agent.

Each call uses its own connection, off the request path. Every answer of an agent maps to one of a few states.
`functions.replica.peer_app` answers; `adapter_loads` chooses the agent and interprets the answer.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import httpx
import msgspec

from functions.api.ids import EngineName
from functions.api.netloc import netloc
from functions.decisions.routing.choice import ReplicaView
from functions.fleet.agent_credentials import agent_credential
from functions.fleet.role_credentials import Bearer, current_secret

LoadState = Literal[
    "loaded",
    "unknown",  # the agent's snapshot does not have the adapter yet
    "no_room",  # all loaded adapters are in use
    "not_ready",  # the agent drains, or its engine is not ready
    "slow",  # not loaded in time; the load continues
    "refused",  # the artifact is invalid, or the engine rejects it
    "unreachable",
]

_STATES: dict[int, LoadState] = {
    200: "loaded",
    404: "unknown",
    409: "no_room",
    422: "refused",
    503: "not_ready",
    504: "slow",
}
_CONNECT_S = 2.0
_READ_SLACK_S = 2.0  # the agent observes `wait_s`; its answer may take a moment
_ANSWER_MAX_BYTES = 16 * 1024
_REASON_MAX_CHARS = 300
_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    state: LoadState
    reason: str = ""  # text for people


class Loader(Protocol):
    async def load(self, replica: ReplicaView, engine_name: EngineName, wait_s: float) -> LoadAnswer:
        """Request a load from the replica's agent. Return within about `wait_s` in all cases."""

    async def close(self) -> None: ...


class _Reason(msgspec.Struct):
    reason: str = ""


class LoadClient:
    """The Loader for production."""

    def __init__(self, secret: Bearer, former: Bearer = "") -> None:
        """Derive credentials from the secret, or from the `former` one for agents of version 0.1."""
        self._secret, self._former = secret, former
        # No keep-alive: a connection pool for many agents may close a connection that was just given to a call.
        limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(trust_env=False, limits=limits)

    async def load(self, replica: ReplicaView, engine_name: EngineName, wait_s: float) -> LoadAnswer:
        timeout = httpx.Timeout(wait_s + _READ_SLACK_S, connect=_CONNECT_S)
        url = f"http://{netloc(replica.host, replica.peer_port)}/adapters/load"
        body = {"engine_name": engine_name, "wait_s": round(wait_s, 3)}
        try:
            for secret in filter(None, (current_secret(self._secret), current_secret(self._former))):
                headers = {"authorization": f"Bearer {agent_credential(secret, replica.host, replica.peer_port)}"}
                async with self._http.stream("POST", url, json=body, headers=headers, timeout=timeout) as answer:
                    found = _meaning(answer.status_code, await _bounded(answer))
                if answer.status_code != 401:
                    break
            return found
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            return LoadAnswer("unreachable", str(error) or type(error).__name__)

    async def close(self) -> None:
        await self._http.aclose()


async def _bounded(answer: httpx.Response) -> bytes:
    """Return the body, or empty bytes if it is larger than _ANSWER_MAX_BYTES, which no reason is."""
    found = b""
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > _ANSWER_MAX_BYTES:
            return b""
    return found


def _meaning(status: int, body: bytes) -> LoadAnswer:
    state = _STATES.get(status, "unreachable")
    try:
        reason = msgspec.json.decode(body, type=_Reason).reason
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        reason = ""
    printable = "".join(char if char.isprintable() else " " for char in reason[:_REASON_MAX_CHARS])
    return LoadAnswer(state, printable or (f"status {status}" if state == "unreachable" else ""))
