"""One request of a workload. A prompt is known by its length and by the blocks that it may share."""

from collections.abc import Callable, Sequence

from functions.api.ids import TenantId


class WorkloadRequest:
    """One request. `blocks` name the prompt's leading whole blocks, in the workload's block size: equal names, equal
    text.

    `then` is called when the request is over, served or not, and returns the requests that follow it, such as an
    agent's next call: a closed loop. None: no request follows.
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
        self.adapter = adapter  # None means the base model
        self.pool = pool  # None means the setting's first pool
        self.region = region  # region of the client; empty: any
        self.then: Callable[[float], Sequence[WorkloadRequest]] | None = None
