"""What vLLM's SamplingParams refuses, in its order and words."""

from functions.engines.sim.protocol import GenerationBody
from functions.engines.sim.refusals import invalid

_MAX_LOGPROBS = 20
_MAX_N = 16384


def check_sampling(body: GenerationBody, *, n: int, max_tokens: int, logprobs: int | None) -> None:
    temperature, top_p = body.temperature, body.top_p
    if n < 1:
        raise invalid(f"n must be at least 1, got {n}.")
    if n > _MAX_N:
        raise invalid(f"n must be at most {_MAX_N}, got {n}.")
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {temperature}."
        raise invalid(message, param="temperature", value=temperature)
    if temperature is not None and temperature > 2:
        message = f"temperature must be in [0, 2], got {temperature}."
        raise invalid(message, param="temperature", value=temperature)
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {top_p}.", param="top_p", value=top_p)
    if max_tokens < 1:
        raise invalid(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens", value=max_tokens)
    _check_ending(body, n=n, max_tokens=max_tokens, logprobs=logprobs)


def _check_ending(body: GenerationBody, *, n: int, max_tokens: int, logprobs: int | None) -> None:
    if body.min_tokens > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {body.min_tokens}."
        raise invalid(message)
    if any(not stop for stop in body.stops):
        raise invalid("stop cannot contain an empty string.")
    if n > 1 and body.temperature == 0:
        raise invalid(f"n must be 1 when using greedy sampling, got {n}.")
    if logprobs is not None and logprobs > _MAX_LOGPROBS:
        raise invalid(
            f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {_MAX_LOGPROBS}",
            param="logprobs",
            value=logprobs,
            late=True,
        )
