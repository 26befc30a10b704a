"""Reservation of one request in its accounts: made on arrival, extended while it streams, settled once.

    entered --take--> reserved --extend--> extended --settle--> settled
       |  <-release--'  `----------------settle-------------------^
       `----------------------- settle (nothing was reserved) ------'

The expected cost is reserved on arrival. A stream that outgrows it reserves 256 tokens at a time ahead of itself and is
never cut: if a bucket has no room, that is debt. The settlement refunds what was too much or charges what was too
little, in every dimension at the same time. In every case the settled amount is the amount charged:

    sum over the lifecycle of everything added to a bucket = what the request cost in the end

Worked example (test_worked_example_from_the_prologue): 1,000 prompt and 100 expected output tokens are reserved. The
stream reaches token 101: 256 more are reserved, 356 in all. It ends after 120, 400 of the prompt cached, with weight
0: 400 and 236 are refunded, and 600 and 120 have been charged.

Illegal moves (reserving twice, anything after the end) change nothing.
"""

from typing import Literal

import msgspec

from functions.decisions.quota.account import QuotaAccount
from functions.decisions.quota.dimensions import DIMENSIONS, GPU, INPUT, KV, NO_COST, OUTPUT, UNITS, Costs, OverLimit
from functions.decisions.request.features import RequestFeatures

EXTENSION_TOKENS = 256
State = Literal["entered", "reserved", "extended", "settled"]
_INPUT_GRAIN, _OUTPUT_GRAIN = UNITS[INPUT], UNITS[OUTPUT]


class Reservation(msgspec.Struct, eq=False):
    """Reservation of one request in all accounts that it counts against."""

    _accounts: tuple[QuotaAccount, ...]
    _held: Costs | None = None  # reserved on arrival
    input_tokens: int = 0
    output_tokens: int = 0  # reserved so far
    state: State = "entered"

    @property
    def held(self) -> Costs:
        """Costs reserved on arrival, by dimension; none if nothing is reserved."""
        return self._held if self._held is not None else NO_COST

    def costs(self, features: RequestFeatures) -> Costs:
        """Return the expected cost of the request by dimension. A dimension that was not learnt yet costs nothing
        before the end.

        The expected length is cut to the whole limit: it is a guess, and a guess must not reject a request for good.
        """
        output_tokens, first = features.expected_output_tokens, self._accounts[0]
        for account in self._accounts:
            bucket = account.buckets[OUTPUT]
            if bucket is not None and bucket.limit < output_tokens:
                output_tokens = bucket.limit
        return (
            0,
            features.prompt_tokens * _INPUT_GRAIN,
            output_tokens * _OUTPUT_GRAIN,
            int((features.prompt_tokens + output_tokens) * first.kv_s_per_token * UNITS[KV]),
            0,  # charged at the end: the batch sizes of its steps are unknown before
        )

    def too_large(self, features: RequestFeatures) -> OverLimit | None:
        """Return the limit that the prompt or the requested output exceeds even when nothing is spent, or None."""
        for account in self._accounts:
            for index, tokens in ((INPUT, features.prompt_tokens), (OUTPUT, features.asked_output_tokens)):
                bucket = account.buckets[index]
                if bucket is not None and tokens > bucket.limit:
                    return OverLimit(DIMENSIONS[index], bucket.limit, 0.0)
        return None

    def reserve(self, features: RequestFeatures, costs: Costs, now_us: int) -> None:
        """Spend the costs in all accounts as a reservation; ignored unless the request has only entered. The caller has
        checked that no account lacks them."""
        if self.state != "entered":
            return
        self.state, self._held = "reserved", costs
        self.input_tokens, self.output_tokens = features.prompt_tokens, costs[OUTPUT] // _OUTPUT_GRAIN
        for account in self._accounts:
            account.spend(costs, now_us)

    def release(self, now_us: int) -> None:
        """Refund what was reserved on arrival, because the request was rejected after all; ignored if nothing is
        reserved, or the request has been extended or settled."""
        held = self._held
        if self.state != "reserved" or held is None:
            return
        self.state, self._held, self.input_tokens, self.output_tokens = "entered", None, 0, 0
        back = (0, -held[INPUT], -held[OUTPUT], -held[KV], -held[GPU])
        for account in self._accounts:
            account.spend(back, now_us)

    def extend(self, output_tokens: int, now_us: int) -> None:
        """Reserve output tokens ahead of a stream that has reached `output_tokens`, in steps of EXTENSION_TOKENS, if
        that exceeds what is reserved."""
        if self.state not in ("reserved", "extended") or output_tokens <= self.output_tokens:
            return
        steps = -(-(output_tokens - self.output_tokens) // EXTENSION_TOKENS)
        more = steps * EXTENSION_TOKENS
        self.state = "extended"
        self.output_tokens += more
        for account in self._accounts:
            account.spend((0, 0, more * _OUTPUT_GRAIN, 0, 0), now_us)

    def settle(
        self, input_tokens: int, output_tokens: int, kv_token_seconds: float, gpu_seconds: float, now_us: int
    ) -> bool:
        """Charge the final cost less what is reserved, refund what is too much, and learn from the usage. Return False,
        and do nothing, if the request was settled before."""
        if self.state == "settled":
            return False
        self.state = "settled"
        held = self._held
        held_kv, held_gpu = (held[KV], held[GPU]) if held is not None else (0, 0)
        rest = (
            0,
            (input_tokens - self.input_tokens) * _INPUT_GRAIN,
            (output_tokens - self.output_tokens) * _OUTPUT_GRAIN,
            int(kv_token_seconds * UNITS[KV]) - held_kv,
            int(gpu_seconds * UNITS[GPU]) - held_gpu,
        )
        for account in self._accounts:
            account.spend(rest, now_us)
            account.record_usage(input_tokens + output_tokens, kv_token_seconds, rest[GPU])
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        return True
