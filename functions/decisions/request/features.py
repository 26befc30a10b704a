"""Size of a request before it runs: computed once, read by quotas, admission, routing and the trace.

    expected_output = min(max_output, choices x learned p95 of the model's answers to this tenant)
    kv_tokens       = prompt + expected_output

Worked example (test_worked_example_of_the_prologue): a prompt of 900 tokens, at most 4,096 more, answers of which 95 in
100 are at most 300 long: 300 are expected, and 1,200 tokens of KV cache will be held at the end.

Neighbours: `functions.gateway.intake.features` computes them; `length_model` has the learnt lengths;
`prefix.block_names` the hashes.
"""

import msgspec


class RequestFeatures(msgspec.Struct, frozen=True, gc=False):
    """Sizes of one request. A struct: a frozen dataclass takes 2 us more to make."""

    prompt_bytes: int  # size of the prompt's text, without the JSON around it
    prompt_tokens: int
    prompt_exact: bool  # counted, not estimated
    max_output_tokens: int  # limit for all choices together; 0 if the route generates nothing
    expected_output_tokens: int  # at most `max_output_tokens`
    text_blocks: tuple[int, ...] = ()  # chained hashes of the whole blocks of the prompt's text (`prefix.block_names`)
    text_block_bytes: int = 512
    choices: int = 1  # number of requested answers
    learnable: bool = False  # the prompt is text only, so its usage shows the bytes per token
    asked_output_tokens: int = 0  # limit set by the caller, all choices together; 0: none

    @property
    def kv_tokens(self) -> int:
        """KV cache tokens that the request is expected to hold at its end."""
        return self.prompt_tokens + self.expected_output_tokens


NO_TOKENS = RequestFeatures(0, 0, True, 0, 0)  # for requests that no model reads
