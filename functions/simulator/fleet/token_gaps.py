"""Times between two tokens over all answers: a histogram of tokens by the length of the step that made them.

Buckets grow by 3 %, which is the error of a quantile. `fluid_engine` adds gaps, `outcome` reads quantiles.
"""

from math import log

_LOG_GROWTH = log(1.03)


class TokenGaps:
    __slots__ = ("_buckets", "seconds", "tokens")

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self.tokens = 0.0
        self.seconds = 0.0  # total wait for all of these tokens

    def add(self, gap_s: float, tokens: float) -> None:
        bucket = int(log(gap_s) / _LOG_GROWTH) if gap_s > 0.0 else -1000
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + tokens
        self.tokens += tokens
        self.seconds += gap_s * tokens

    def merge(self, other: "TokenGaps") -> None:
        for bucket, tokens in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0.0) + tokens
        self.tokens += other.tokens
        self.seconds += other.seconds

    def copy(self) -> "TokenGaps":
        same = TokenGaps()
        same.merge(self)
        return same

    def since(self, former: "TokenGaps") -> "TokenGaps":
        """Return the gaps added since `former` was copied from this."""
        later = TokenGaps()
        later._buckets = {
            bucket: more
            for bucket, tokens in self._buckets.items()
            if (more := tokens - former._buckets.get(bucket, 0.0)) > 0.0
        }
        later.tokens = self.tokens - former.tokens
        later.seconds = self.seconds - former.seconds
        return later

    def quantile_s(self, q: float) -> float | None:
        """Return the quantile `q` (0 to 1) of the gaps in seconds, within 1.5 %, or None if there are no gaps."""
        seen = 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= q * self.tokens:
                return float(1.03 ** (bucket - 0.5))
        return None
