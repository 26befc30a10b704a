"""State of one reply: which tokens exist, which were sent to the client, and how the reply ended."""

from dataclasses import dataclass

from functions.engines.sim.accept import ReplyChoice
from functions.engines.sim.reply import ReplyPlan
from functions.engines.sim.sequence import Sequence, Status


@dataclass(slots=True)
class Progress:
    choice: ReplyChoice
    seq: Sequence | None = None
    """`None` if the draining engine refused the request; the reply is then empty and ends with "abort"."""
    sent_tokens: int = 0
    sent_end: bool = False
    """True if the client was informed that the reply was cut short."""

    @property
    def index(self) -> int:
        return self.choice.index

    @property
    def plan(self) -> ReplyPlan:
        return self.choice.plan

    @property
    def tokens(self) -> int:
        return 0 if self.seq is None else self.seq.emitted_tokens

    @property
    def ids(self) -> tuple[int, ...]:
        return self.plan.ids[: self.tokens]

    @property
    def finished(self) -> bool:
        return self.seq is None or self.is_cut or self.seq.status is Status.FINISHED

    @property
    def is_cut(self) -> bool:
        """True if the engine aborted the reply when it was put to sleep. The tokens so far remain."""
        return self.seq is not None and self.seq.status is Status.ABORTED

    @property
    def finish_reason(self) -> str | None:
        if self.seq is None or self.is_cut:
            return "abort"
        return self.plan.finish_reason if self.finished else None

    @property
    def stop_reason(self) -> str | int | None:
        return self.plan.stop_reason if self.finished and self.seq and not self.is_cut else None

    @property
    def text(self) -> str:
        if self.is_cut:
            return "".join(self.plan.deltas[: self.tokens])
        return "" if self.seq is None else self.plan.text


@dataclass(frozen=True, slots=True)
class Envelope:
    """Fields that every message about one request repeats."""

    request_id: str
    model: str
    created_s: int
    """Wall clock, seconds since 1970."""
    fingerprint: str
    prompt_token_details: bool
    """`--enable-prompt-tokens-details`."""
