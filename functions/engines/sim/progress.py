"""One reply on its way: which of its tokens exist, which of them the client has been given, how it ended."""

from dataclasses import dataclass

from functions.engines.sim.accept import Choice
from functions.engines.sim.plan import Plan
from functions.engines.sim.sequence import Sequence, Status


@dataclass(slots=True)
class Progress:
    choice: Choice
    seq: Sequence | None = None
    """None: the engine refused it (it drains); the reply is empty and ended with "abort"."""
    sent_tokens: int = 0

    @property
    def index(self) -> int:
        return self.choice.index

    @property
    def plan(self) -> Plan:
        return self.choice.plan

    @property
    def tokens(self) -> int:
        return 0 if self.seq is None else self.seq.emitted_tokens

    @property
    def ids(self) -> tuple[int, ...]:
        return self.plan.ids[: self.tokens]

    @property
    def finished(self) -> bool:
        return self.seq is None or self.seq.status is Status.FINISHED

    @property
    def finish_reason(self) -> str | None:
        if self.seq is None:
            return "abort"
        return self.plan.finish_reason if self.finished else None

    @property
    def stop_reason(self) -> str | int | None:
        return self.plan.stop_reason if self.finished and self.seq else None

    @property
    def text(self) -> str:
        return "" if self.seq is None else self.plan.text


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every message about one request repeats."""

    request_id: str
    model: str
    created_s: int
    """Wall clock, seconds since 1970."""
    fingerprint: str
    prompt_token_details: bool
    """`--enable-prompt-tokens-details`."""
