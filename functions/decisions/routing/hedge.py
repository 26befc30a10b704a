"""When a request has waited so long for its first token that a second attempt beside the first is worth its cost.

Not before 19 in 20 requests that looked like it had begun: what a pool's first tokens really took, over what was
predicted, is remembered for the last `WINDOW` of them, and

    wait = max(hedgeAfter, p95 of (took / predicted) x predicted)

Worked example (test_worked_example_of_the_prologue): predicted are 200 ms; of the last tokens 95 in 100 took at most
2.5 times what was predicted. With `hedgeAfter: 300ms` the second attempt begins after 500 ms, and for a prediction of
50 ms after 300. Until enough is known, a first token may take `UNKNOWN_RATIO` times what was predicted.
"""

from collections import deque
from math import ceil

WINDOW = 256
_LEAST_KNOWN = 40  # below, a 95th percentile is one request's luck
UNKNOWN_RATIO = 4.0
_LEAST_PREDICTED_S = 0.001  # an idle replica is predicted at nothing


class FirstTokens:
    """One pool's; owned by one event loop."""

    __slots__ = ("_fresh", "_p95", "_ratios")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=WINDOW)
        self._p95 = UNKNOWN_RATIO
        self._fresh = 0  # learnt since the percentile was computed

    def took(self, predicted_s: float, took_s: float) -> None:
        self._ratios.append(took_s / max(predicted_s, _LEAST_PREDICTED_S))
        self._fresh += 1

    def wait_s(self, predicted_s: float, hedge_after_s: float) -> float:
        """How long to wait for a first token before it is asked for a second time."""
        if self._fresh >= _LEAST_KNOWN:
            self._fresh = 0
            self._p95 = sorted(self._ratios)[ceil(0.95 * len(self._ratios)) - 1]
        return max(hedge_after_s, self._p95 * max(predicted_s, _LEAST_PREDICTED_S))
