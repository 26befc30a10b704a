"""One request of a workload: a prompt is known by its length and by the blocks that it may share."""

from collections.abc import Callable, Sequence

from functions.api.ids import TenantId


class WorkloadRequest:
    """`blocks` name the prompt's beginning in whole blocks of the workload's size: equal names, equal text.

    `then` is told when this one is over, served or not, and says what is asked because of it (an agent's next call):
    a closed loop. None: nothing is.
    """

    __slots__ = (
        "adapter",
        "at_s",
        "band",
        "blocks",
        "output_tokens",
        "pool",
        "prompt_tokens",
        "region",
        "session",
        "tenant",
        "then",
    )

    def __init__(
        self,
        at_s: float,
        tenant: TenantId,
        prompt_tokens: int,
        output_tokens: int,
        *,
        band: int = 0,
        blocks: tuple[int, ...] = (),
        session: str | None = None,
        adapter: str | None = None,
        pool: str | None = None,
        region: str = "",
    ) -> None:
        self.at_s = at_s
        self.tenant = tenant
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.band = band  # index into admission_ticket.BANDS
        self.blocks = blocks
        self.session = session
        self.adapter = adapter  # None: the base model
        self.pool = pool  # None: the first pool there is
        self.region = region  # where the client is; empty: anywhere
        self.then: Callable[[float], Sequence[WorkloadRequest]] | None = None
