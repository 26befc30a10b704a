"""One sequence: a prompt, its planned reply, and the engine's progress with it.

The reply is known on arrival (the simulator decides the text before the time), so a sequence is a cursor over
`token_ids` = prompt + reply. `computed_tokens` counts tokens whose KV exists; `emitted_tokens` counts tokens sent to
the client. A token is emitted when everything before it is computed. Preemption sets `computed_tokens` to 0 and
leaves `emitted_tokens`: the client never sees a token twice.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.blocks import CacheScope


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()
    ABORTED = auto()


@dataclass(slots=True)
class Marks:
    """Times of a sequence's events, in engine seconds."""

    arrived_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    seq_id: int
    token_ids: "array[int]"
    prompt_tokens: int
    marks: Marks
    scope: CacheScope = field(default_factory=CacheScope)
    adapter: AdapterId | None = None
    priority: int = 0
    status: Status = Status.WAITING
    computed_tokens: int = 0
    emitted_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first scheduled."""
    created_cache_tokens: int = 0
    preemptions: int = 0
    drafted_tokens: int = 0
    """Draft tokens of the current draft that may still turn out right."""
    received_tokens: int = 0
    """Prompt tokens whose KV blocks came from another engine."""
    remote_cached_tokens: int = 0
    """Part of `received_tokens` that the other engine had cached."""
    host_tokens: int = 0
    """Prompt tokens found in host memory when it was first scheduled; part of `cached_tokens`."""
    reloaded_s: float | None = None
    """Time at which its blocks from host memory arrive; the blocks are already reserved. `None`: it waits for none."""
    reload_tokens: int = 0
    """Tokens of the blocks being reloaded and of those that were on the accelerator."""
    hold_as: str = ""
    """If not empty, its blocks are held under this name for another engine when it is finished."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)

    @classmethod
    def arrive(
        cls,
        seq_id: int,
        prompt_ids: Iterable[int],
        reply_ids: Iterable[int],
        *,
        now_s: float,
        scope: CacheScope | None = None,
        adapter: AdapterId | None = None,
        priority: int = 0,
    ) -> "Sequence":
        tokens = array("q", prompt_ids)
        prompt_tokens = len(tokens)
        tokens.extend(reply_ids)
        if len(tokens) == prompt_tokens:
            raise ValueError("a sequence that replies nothing never finishes")
        return cls(
            seq_id=seq_id,
            token_ids=tokens,
            prompt_tokens=prompt_tokens,
            marks=Marks(arrived_s=now_s),
            scope=scope or CacheScope(),
            adapter=adapter,
            priority=priority,
        )

    @property
    def known_tokens(self) -> int:
        """Tokens whose KV may be computed now: the prompt and the emitted tokens."""
        return self.prompt_tokens + self.emitted_tokens

    @property
    def missing_tokens(self) -> int:
        return self.prompt_tokens + self.emitted_tokens - self.computed_tokens

    @property
    def external_tokens(self) -> int:
        """Prompt tokens that were neither computed nor cached here."""
        return max(0, self.received_tokens - self.device_tokens)

    @property
    def device_tokens(self) -> int:
        """Prompt tokens found on the accelerator."""
        return self.cached_tokens - self.remote_cached_tokens - self.host_tokens

    @property
    def reply_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: earlier is served first and preempted last. Under first-come-first-served every priority is 0."""
        return (self.priority, self.seq_id)
