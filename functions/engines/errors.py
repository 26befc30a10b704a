"""Errors of an engine, named by what the caller can do about them.

EngineUnreachable   no connection, or it broke: take the replica out and try another
EngineHung          it accepted but did not answer in time: it may be stuck (vLLM's /health does not notice)
EngineRefused       it answered with an error; `retryable` says if the request may succeed later or elsewhere
EngineGarbled       the answer is not an engine's: wrong address, wrong version or a broken proxy
"""


class EngineError(Exception):
    """Base class of all errors in this module."""


class EngineUnreachable(EngineError):
    pass


class EngineHung(EngineError):
    def __init__(self, what: str, *, timeout_s: float) -> None:
        super().__init__(f"{what}: no answer within {timeout_s:g} s")
        self.timeout_s = timeout_s


class EngineRefused(EngineError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message

    @property
    def retryable(self) -> bool:
        """Return True if the engine is only busy (429 or 503). A 500 is final: a broken adapter or dead engine stays
        so."""
        return self.status in (429, 503)


class EngineGarbled(EngineError):
    pass
