"""Errors of an engine, named by what the caller can do about them.

EngineUnreachable   nobody answers there, or the connection broke: take the replica out, try another
EngineHung          it accepted and said nothing in time: the engine may be stuck (vLLM's /health does not notice)
EngineRefused       it answered no; `retryable` says whether the same request may succeed later or elsewhere
EngineGarbled       it answered what no engine answers: wrong address, wrong version, broken proxy
"""


class EngineError(Exception):
    """Any of the below."""


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
        """Busy now. A 500 is not: a broken adapter stays broken, and a dead engine stays dead."""
        return self.status in (429, 503)


class EngineGarbled(EngineError):
    pass
