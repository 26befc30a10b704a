"""What the engine counts, in vLLM's terms and buckets (v1/metrics/buckets.py); `exposition` gives it vLLM's names.

Observing costs one bisect and two additions: at 20,000 tokens a second the inter-token histogram is the hottest
line here.
"""

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `limit`: vLLM's buckets for counts of tokens."""
    series = (mantissa * 10**exponent for exponent in range(len(str(limit))) for mantissa in (1, 2, 5))
    return tuple(float(value) for value in series if value <= limit)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as text, observations up to it), ending with +Inf."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, (float(count) for count in accumulate(self.counts)), strict=True))


class EngineStats:
    """Counters and histograms of one engine since it started."""

    def __init__(self, *, max_model_len_tokens: int) -> None:
        tokens = one_two_five(max_model_len_tokens)
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.preemptions = 0
        self.finished: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self.adapter_uses: Counter[str] = Counter()  # requests by where their adapter was; vLLM does not count this
        self.ttft_s = Histogram(TTFT_S)
        self.itl_s = Histogram(ITL_S)
        self.time_per_output_token_s = Histogram(ITL_S)
        self.e2e_s = Histogram(LATENCY_S)
        self.queue_s = Histogram(LATENCY_S)
        self.inference_s = Histogram(LATENCY_S)
        self.prefill_s = Histogram(LATENCY_S)
        self.decode_s = Histogram(LATENCY_S)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.request_prompt_tokens = Histogram(tokens)
        self.request_generation_tokens = Histogram(tokens)
        self.request_max_generation_tokens = Histogram(tokens)
        self.request_max_tokens = Histogram(tokens)
        self.request_computed_tokens = Histogram(tokens)
        self.request_n = Histogram(PARAMS_N)
        self.request_preemptions = Histogram(PREEMPTIONS)
