"""What is known of a request's size before it runs: made once, read by quotas, waiting room, routing and the trace.

    expected_output = min(max_output, choices x learned p95 of the model's answers to this tenant)
    kv_tokens       = prompt + expected_output

Worked example (test_worked_example_of_the_prologue): a prompt of 900 tokens, at most 4,096 more, answers of which 95 in
100 are at most 300 long: 300 are expected, and 1,200 tokens of KV cache will be held at the end.

Neighbours: `functions.gateway.intake.features` makes them; `length_model` has what was learnt; `prefix_blocks` the
hashes.
"""

import msgspec


class RequestFeatures(msgspec.Struct, frozen=True, gc=False):
    """Sizes of one request. A struct: a frozen dataclass takes 2 us more to make."""

    prompt_bytes: int  # of the prompt's text, without the JSON around it
    prompt_tokens: int
    prompt_exact: bool  # counted, not estimated
    max_output_tokens: int  # the most that may be generated, all choices together; 0 where the route generates nothing
    expected_output_tokens: int  # at most that
    text_blocks: tuple[int, ...] = ()  # chained hashes of the whole blocks of the prompt's text (`prefix_blocks`)
    text_block_bytes: int = 512
    choices: int = 1  # answers that were asked for; what is generated is theirs together
    learnable: bool = False  # the prompt is text alone, so that its usage says how long a token is
    asked_output_tokens: int = 0  # what the caller named, all choices together; 0: nothing

    @property
    def kv_tokens(self) -> int:
        """What of a replica's KV cache the request holds at its end, as far as can be foreseen."""
        return self.prompt_tokens + self.expected_output_tokens


NO_TOKENS = RequestFeatures(0, 0, True, 0, 0)  # of what no model reads
