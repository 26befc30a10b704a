"""One request as the simulator sees it. A prompt is known by its length and by the blocks that it may share."""

from functions.api.ids import TenantId


class Asked:
    """`blocks` name the prompt's beginning in whole blocks of the workload's size: equal names, equal text."""

    __slots__ = ("at_s", "band", "blocks", "output_tokens", "prompt_tokens", "session", "tenant")

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
    ) -> None:
        self.at_s = at_s
        self.tenant = tenant
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.band = band  # index into admission_ticket.BANDS
        self.blocks = blocks
        self.session = session
