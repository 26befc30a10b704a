"""Reservation of one request in its accounts: made on arrival, extended while it streams, settled once.

    entered --take--> reserved --extend--> extended --settle--> settled
       |  <-release--'  `----------------settle-------------------^
       `----------------------- settle (nothing was reserved) ------'

What is taken on arrival is what is expected; a stream that outgrows it takes 256 tokens at a time ahead of itself and
is never cut: where a bucket has no room, that is debt. The end gives back what was too much or charges what was too
little, in every dimension at once. Whatever happens, settled is what was charged:

    sum over the lifecycle of everything added to a bucket = what the request cost in the end

Worked example (test_worked_example_from_the_prologue): 1,000 prompt and 100 expected output tokens are taken. The
stream reaches token 101: 256 more are taken, 356 in all. It ends after 120, 400 of the prompt cached, which weigh
nothing: 400 and 236 go back, and 600 and 120 have been charged.

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
    """Of one request, in all accounts that it counts against."""

    _accounts: tuple[QuotaAccount, ...]
    _held: Costs | None = None  # on arrival
    input_tokens: int = 0
    output_tokens: int = 0  # taken so far
    state: State = "entered"

    @property
    def held(self) -> Costs:
        """What was taken on arrival."""
        return self._held if self._held is not None else NO_COST

    def costs(self, features: RequestFeatures) -> Costs:
        """What the request is expected to cost; what was not learnt yet costs nothing before the end.

        An expected length is never more than a whole limit: it is a guess, for which nobody is turned away for good.
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
            0,  # at the end: until then nobody knows with how many it shares its steps
        )

    def too_large(self, features: RequestFeatures) -> OverLimit | None:
        """The dimension of which the request wants more than there ever is: its prompt, or the answer it names."""
        for account in self._accounts:
            for index, tokens in ((INPUT, features.prompt_tokens), (OUTPUT, features.asked_output_tokens)):
                bucket = account.buckets[index]
                if bucket is not None and tokens > bucket.limit:
                    return OverLimit(DIMENSIONS[index], bucket.limit, 0.0)
        return None

    def take(self, features: RequestFeatures, costs: Costs, now_us: int) -> None:
        """Reserve; every account's `lacks` has been asked."""
        if self.state != "entered":
            return
        self.state, self._held = "reserved", costs
        self.input_tokens, self.output_tokens = features.prompt_tokens, costs[OUTPUT] // _OUTPUT_GRAIN
        for account in self._accounts:
            account.take(costs, now_us)

    def release(self, now_us: int) -> None:
        """It was refused after all: give back what was taken on arrival."""
        held = self._held
        if self.state != "reserved" or held is None:
            return
        self.state, self._held, self.input_tokens, self.output_tokens = "entered", None, 0, 0
        back = (0, -held[INPUT], -held[OUTPUT], -held[KV], -held[GPU])
        for account in self._accounts:
            account.take(back, now_us)

    def extend(self, output_tokens: int, now_us: int) -> None:
        """A stream has come this far: stay ahead of it."""
        if self.state not in ("reserved", "extended") or output_tokens <= self.output_tokens:
            return
        steps = -(-(output_tokens - self.output_tokens) // EXTENSION_TOKENS)
        more = steps * EXTENSION_TOKENS
        self.state = "extended"
        self.output_tokens += more
        for account in self._accounts:
            account.take((0, 0, more * _OUTPUT_GRAIN, 0, 0), now_us)

    def settle(
        self, input_tokens: int, output_tokens: int, kv_token_seconds: float, gpu_seconds: float, now_us: int
    ) -> bool:
        """Charge what it cost in the end; whether this was the first to say so."""
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
            account.take(rest, now_us)
            account.learn(input_tokens + output_tokens, kv_token_seconds, rest[GPU])
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        return True
