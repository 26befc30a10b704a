"""Second attempts beside slow first ones: for whom, and after how long.

Only where the pool's policy says `hedgeAfter`, only for interactive streams (a whole answer has no first byte before
its end), one at a time, and out of the retry budget, so that a slow pool is not asked twice for everything. The
exchange runs the two; the first that begins to answer is kept and the other one aborted at once. The tenant is charged
for the one that it got.
"""

from functions.api.ids import PoolName
from functions.decisions.routing.hedge import FirstTokens
from functions.gateway.intake.intake import Admitted
from functions.gateway.request.attempt import Attempt

_MAX_POOLS = 1024


class Hedging:
    """Owned by one event loop. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.begun_total = self.won_total = 0
        self._pools: dict[PoolName, FirstTokens] = {}

    def is_late(self, admitted: Admitted, attempt: Attempt, now_s: float) -> bool:
        """Whether a first attempt that has not begun to answer should have."""
        after_s = admitted.routing.hedge_after_s
        if after_s is None or admitted.service_class != "interactive" or not admitted.stream or attempt.begun:
            return False
        predicted_s = attempt.prediction.total_ms / 1000
        return now_s - attempt.sent_s >= self._pool(admitted.model.pool).wait_s(predicted_s, after_s)

    def first_token(self, admitted: Admitted, attempt: Attempt, now_s: float) -> None:
        """What the attempt's first token took; remembered where somebody will ask."""
        if admitted.routing.hedge_after_s is not None and admitted.stream:
            self._pool(admitted.model.pool).took(attempt.prediction.total_ms / 1000, now_s - attempt.sent_s)

    def _pool(self, pool: PoolName) -> FirstTokens:
        known = self._pools.get(pool)
        if known is None:
            if len(self._pools) >= _MAX_POOLS:
                self._pools.clear()
            known = self._pools[pool] = FirstTokens()
        return known
