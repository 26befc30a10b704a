"""Histogram of a stream's gaps: the time between its pieces, in buckets of a quarter of an octave.

It is cheap enough for every piece of every stream: 384 bytes a stream, allocated with the second piece. A gap of g
us is in the bucket of its highest three bits, so a quantile is off by at most an eighth of its value. Worked
example (test_worked_example_of_the_prologue): gaps of 10 ms, 10 ms and 40 ms have a median of 9.2 ms and a 99th
percentile of 36.9 ms, which are the middles of 8.2 to 10.2 and of 32.8 to 41.0.

A piece may have any number of tokens (`stream_interval`, speculation), and a stream of few large pieces is not a
slow one. `between_tokens` converts n gaps of t tokens to t gaps. All but one of a piece's tokens have the token
time of the median piece, and one has the rest, so that a stall remains a stall
(test_stall_is_seen_for_any_piece_size). Worked example (test_gaps_of_pieces_become_gaps_of_tokens): pieces of
10 tokens each 100 ms are gaps of 10 ms; one that took 5,100 ms is nine gaps of 10 ms and one of 5 s.
"""

from array import array
from itertools import accumulate

from functions.decisions.quantile_sketch import bucket_of

_BUCKETS = 96  # up to 2**25 us = 33 s, longer than a stream may be silent
_NONE = bytes(_BUCKETS * array("I").itemsize)
_ONE_TOKEN_A_PIECE = 1.25  # up to this ratio, pieces merely arrived together; beyond, the stream has larger pieces

GapCounts = tuple[tuple[int, int], ...]  # (bucket, gaps in it), ascending


class Gaps:
    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: array[int] | None = None
        self.total = 0

    def add(self, gap_s: float) -> None:
        if self._counts is None:
            self._counts = array("I", _NONE)
        gap_us = int(gap_s * 1e6)  # as in `_bucket_of`, but inlined: it runs for each piece of each stream
        bits = gap_us.bit_length()
        bucket = (bits - 2) * 4 + ((gap_us >> (bits - 3)) & 3) if bits > 2 else 0
        self._counts[bucket if bucket < _BUCKETS else _BUCKETS - 1] += 1
        self.total += 1

    def between_tokens(self, tokens: int) -> GapCounts:
        """Return (bucket, count) of the gaps between tokens, given the number of tokens of the whole stream. Gaps
        between pieces are converted if pieces have several tokens."""
        if self._counts is None:
            return ()
        counts = tuple([(bucket, count) for bucket, count in enumerate(self._counts) if count])
        each = (tokens - 1) / self.total
        return counts if each <= _ONE_TOKEN_A_PIECE else _gaps_of_tokens(counts, each)

    def quantile_ms(self, quantile: float) -> float | None:
        """Return the quantile of the gaps between pieces in milliseconds, as the middle of its bucket; None if there
        were no gaps."""
        if self._counts is None:
            return None
        wanted, passed = quantile * self.total, 0
        for bucket, count in enumerate(self._counts):
            passed += count
            if count and passed >= wanted:
                return MIDDLES_S[bucket] * 1000
        return MIDDLES_S[-1] * 1000


def _gaps_of_tokens(counts: GapCounts, each: float) -> GapCounts:
    """Convert gaps between pieces of `each` tokens on average to gaps between tokens."""
    total = sum(count for _, count in counts)
    token_s = MIDDLES_S[_median(counts, total)] / each
    others_s = (each - 1) * token_s
    found: dict[int, int] = {_bucket_of(token_s): round(total * (each - 1))}
    for bucket, count in counts:
        piece_s = MIDDLES_S[bucket]
        own = _bucket_of(max(piece_s / each, piece_s - others_s))
        found[own] = found.get(own, 0) + count
    return tuple(sorted(found.items()))


def _median(counts: GapCounts, total: int) -> int:
    """Return the bucket of the median gap; `total` is the sum of the counts."""
    passed = accumulate(count for _, count in counts)
    return next(bucket for (bucket, _), until in zip(counts, passed, strict=True) if 2 * until >= total)


def _bucket_of(gap_s: float) -> int:
    gap_us = int(gap_s * 1e6)
    bits = gap_us.bit_length()
    bucket = (bits - 2) * 4 + ((gap_us >> (bits - 3)) & 3) if bits > 2 else 0
    return min(bucket, _BUCKETS - 1)


def _middle_us(bucket: int) -> float:
    if bucket == 0:
        return 0.0
    bits, quarter = bucket // 4 + 2, bucket % 4
    return (4 + quarter + 0.5) * float(2 ** (bits - 3))


MIDDLES_S = tuple(_middle_us(bucket) / 1e6 for bucket in range(_BUCKETS))
SKETCH_BUCKETS = tuple(bucket_of(middle_s * 1000) for middle_s in MIDDLES_S)  # buckets of a `QuantileSketch`
