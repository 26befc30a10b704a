"""Requests with as little in common as possible: hundreds of thousands of sessions, prompts and model names.

15 % of the requests name a model that does not exist, mostly each another one; 10 % name the base model; the rest name
any of 10,000 adapters. Each request of a session has a random number of turns, up to eight, of the session's own text.
Half are streams.
"""

import random

import orjson

from functions.gateway.http.headers import RawHeaders
from loadtests.memory.virtual_gateway import ADAPTERS, POOL, TENANTS, adapter, key_of

SESSIONS = 100_000
INVENTED = 1_000_000  # names of models that do not exist
_INVENTED_RATIO = 0.15
_BASE_RATIO = 0.1
_TURN_BYTES = (200, 2000)
_MAX_TURNS = 8


class Traffic:
    """A deterministic generator: the same seed gives the same requests."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._authorization = [f"Bearer {key_of(number)}".encode() for number in range(TENANTS)]
        # One byte per session and name that was used, allocated in advance: a set would grow during the run.
        self._sessions = bytearray(b"\0" * SESSIONS)
        self._names = bytearray(b"\0" * (INVENTED + ADAPTERS + 1))

    @property
    def sessions(self) -> int:
        """Number of distinct sessions so far."""
        return self._sessions.count(1)

    @property
    def names(self) -> int:
        """Number of distinct model names so far."""
        return self._names.count(1)

    def request(self) -> tuple[RawHeaders, bytes]:
        """Return headers and body of the next request."""
        rng = self._rng
        session = rng.randrange(SESSIONS)
        tenant, name = self._model(session)
        self._sessions[session] = 1
        turns = 1 + rng.randrange(_MAX_TURNS)
        body = {
            "model": name,
            "messages": [
                {"role": "user" if turn % 2 == 0 else "assistant", "content": _text(session, turn)}
                for turn in range(turns)
            ],
            "max_tokens": 64,
            "stream": rng.random() < 0.5,
        }
        headers = [
            (b"host", b"shoal.test"),
            (b"content-type", b"application/json"),
            (b"authorization", self._authorization[tenant]),
            (b"x-session-id", b"session-%d" % session),
        ]
        return headers, orjson.dumps(body)

    def _model(self, session: int) -> tuple[int, str]:
        """Return a tenant's number and the model name of its request."""
        draw = self._rng.random()
        if draw < _INVENTED_RATIO:
            number = self._rng.randrange(INVENTED)
            self._names[ADAPTERS + 1 + number] = 1
            return session % TENANTS, f"nobody/{number}"
        if draw < _INVENTED_RATIO + _BASE_RATIO:
            self._names[ADAPTERS] = 1
            return session % TENANTS, POOL
        number = session % ADAPTERS
        self._names[number] = 1
        return number % TENANTS, adapter(number)


def _text(session: int, turn: int) -> str:
    """Return the text of a session's turn: always the same, and unique."""
    low, high = _TURN_BYTES
    size = low + (session * 31 + turn * 17) % (high - low)
    word = f"{session}:{turn} "
    return (word * (size // len(word) + 1))[:size]
