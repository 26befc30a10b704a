"""Length model of prompts and answers, from engines' counts: bytes per token, 95th percentile of answers.

Bytes per token, per (base model, tenant), are weighted by tokens, so that many short prompts do not outvote a long one:

    bytes_per_token = B / T,     B <- 0.95 B + bytes of a prompt,     T <- 0.95 T + its tokens

The start is 4,000 bytes and 1,000 tokens: English with a vocabulary of 50k. A prompt then counts as
`ceil(1.1 x bytes / bytes_per_token)` tokens, rather too many, since quotas reserve by it.
Worked example (test_bytes_per_token_are_learned_per_tenant_and_vocabulary): one prompt of 3,000 bytes and 1,500
tokens makes (0.95 x 4,000 + 3,000) / (0.95 x 1,000 + 1,500) = 2.78; a prompt of 1,000 bytes then counts as 397 tokens.

Answers, per (model, tenant), are counted in buckets that grow by 5 %, from 64 to 4,096 tokens. So a quantile is never
too small and at most 5 % too large. All counts are halved at 512 answers, so that old ones fade. Fewer than 14 answers
do not show that answers are short: of 14, the longest is more likely than not (1 - 0.95^14 = 51 %) at or above the true
percentile. Until then the expectation is 256 tokens, the step by which a stream's reservation grows, or the longest so
far if that is more: a tenant's first streams may start concurrently, and their real use is known only after the first.
Worked example (test_the_percentile_of_answers): 95 answers of 100 tokens and five of 2,000: the bucket of 100 ends at
104, and 104 are expected; with one more answer of 2,000, 2,044.

An answer that was cut by its own limit shows only that it would have been longer. So it is learnt only if it is longer
than the current expectation (test_truncated_answers_do_not_lower_the_expectation).

Both maps are bounded and evict the entry that learnt least recently.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from math import ceil, floor, log
from typing import Generic, TypeVar

START_BYTES_PER_TOKEN = 4.0
SAFETY_RATIO = 1.1
UNKNOWN_OUTPUT_TOKENS = 256  # per choice, until enough is learnt
LEAST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS = 64, 4096
MAX_ENTRIES = 20_000  # per map; 8 MB for both

_KEPT_RATIO = 0.95  # weight of earlier prompts at each new one
_START_TOKENS = 1000.0
_MAX_SAMPLE_TOKENS = 8192  # largest weight of one prompt
_BYTES_PER_TOKEN_RANGE = (1.0, 16.0)  # a token has at least one byte; tokens of indentation are long

_GROWTH = 1.05
_LOG_GROWTH = log(_GROWTH)
_BUCKETS = ceil(log(MOST_OUTPUT_TOKENS / LEAST_OUTPUT_TOKENS) / _LOG_GROWTH) + 1
_QUANTILE = 0.95
_MIN_ANSWERS = 14
_HALVED_AT = 512


class BytesPerToken:
    """Bytes per token of one tenant's prompts for one base model."""

    __slots__ = ("_bytes", "_tokens", "ratio")

    def __init__(self) -> None:
        self._bytes, self._tokens = START_BYTES_PER_TOKEN * _START_TOKENS, _START_TOKENS
        self.ratio = START_BYTES_PER_TOKEN

    def learn(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Learn from one text prompt. A ratio outside the possible range is clamped, and an empty prompt is ignored."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        least, most = _BYTES_PER_TOKEN_RANGE
        tokens = min(prompt_tokens, _MAX_SAMPLE_TOKENS)
        self._bytes = _KEPT_RATIO * self._bytes + min(max(prompt_bytes / prompt_tokens, least), most) * tokens
        self._tokens = _KEPT_RATIO * self._tokens + tokens
        self.ratio = self._bytes / self._tokens


class AnswerLengths:
    """Running 95th percentile of the lengths of one tenant's answers from one model: O(1) on average."""

    __slots__ = ("_above", "_at", "_count", "_counts", "expected_tokens")

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 * _BUCKETS))
        self._count = 0
        self._at = 0  # bucket of the quantile: the smallest with at most 5 in 100 answers above it
        self._above = 0  # answers in buckets above it
        self.expected_tokens = UNKNOWN_OUTPUT_TOKENS

    def learn(self, tokens: int, cut: bool) -> None:
        """Learn the length of one answer. `cut` means that its own limit ended it: it is then ignored if it is shorter
        than expected."""
        if cut and tokens < self.expected_tokens:
            return
        bucket = _BUCKET_OF[min(tokens, MOST_OUTPUT_TOKENS)] if tokens > 0 else 0
        self._counts[bucket] += 1
        self._count += 1
        self._above += bucket > self._at
        if self._count >= _HALVED_AT:
            self._fade()
        may_be_above = floor(self._count * (1 - _QUANTILE) + 1e-9)
        while self._above > may_be_above:
            self._at += 1
            self._above -= self._counts[self._at]
        while self._at > 0 and self._above + self._counts[self._at] <= may_be_above:
            self._above += self._counts[self._at]
            self._at -= 1
        longest = _UPPER_EDGE[self._at]
        self.expected_tokens = longest if self._count >= _MIN_ANSWERS else max(UNKNOWN_OUTPUT_TOKENS, longest)

    def _fade(self) -> None:
        self._counts = array("H", [count // 2 for count in self._counts])
        self._count = sum(self._counts)
        self._above = sum(self._counts[self._at + 1 :])


def _bucket_of(tokens: int) -> int:
    if tokens <= LEAST_OUTPUT_TOKENS:
        return 0
    return min(_BUCKETS - 1, ceil(log(tokens / LEAST_OUTPUT_TOKENS) / _LOG_GROWTH - 1e-9))


def _upper_edge(bucket: int) -> int:
    return min(MOST_OUTPUT_TOKENS, floor(LEAST_OUTPUT_TOKENS * _GROWTH**bucket + 1e-6))


# Each answer needs both; a table look-up costs a tenth of a logarithm and a power.
_BUCKET_OF = bytes(_bucket_of(tokens) for tokens in range(MOST_OUTPUT_TOKENS + 1))
_UPPER_EDGE = tuple(_upper_edge(bucket) for bucket in range(_BUCKETS))


Learnt = TypeVar("Learnt")


class _Entries(Generic[Learnt]):
    """Bounded map by two names. It evicts the entry that learnt least recently; reading does not count."""

    __slots__ = ("_entries", "_make", "_max_entries", "find")

    def __init__(self, make: Callable[[], Learnt], max_entries: int) -> None:
        self._entries: OrderedDict[tuple[str, str], Learnt] = OrderedDict()
        self._make = make
        self._max_entries = max_entries
        self.find: Callable[[tuple[str, str]], Learnt | None] = self._entries.get

    def get_or_create(self, key: tuple[str, str]) -> Learnt:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._make()
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return entry

    def __len__(self) -> int:
        return len(self._entries)


class LengthModel:
    """Learnt lengths of prompts and answers. Owned by one event loop."""

    __slots__ = ("_answers", "_prompts")

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._prompts: _Entries[BytesPerToken] = _Entries(BytesPerToken, max_entries)
        self._answers: _Entries[AnswerLengths] = _Entries(AnswerLengths, max_entries)

    def prompt_tokens(self, base: str, tenant: str, prompt_bytes: int) -> int:
        """Return the estimated number of tokens in `prompt_bytes` bytes, rather too many, from the bytes per token
        learnt for this base and tenant."""
        learnt = self._prompts.find((base, tenant))
        return ceil(SAFETY_RATIO * prompt_bytes / (learnt.ratio if learnt is not None else START_BYTES_PER_TOKEN))

    def bytes_per_token(self, base: str, tenant: str) -> float:
        learnt = self._prompts.find((base, tenant))
        return learnt.ratio if learnt is not None else START_BYTES_PER_TOKEN

    def output_tokens(self, model: str, tenant: str) -> int:
        """Return the 95th percentile of the lengths of the tenant's answers from the model, regardless of the request's
        own limit; UNKNOWN_OUTPUT_TOKENS before any answer."""
        learnt = self._answers.find((model, tenant))
        return learnt.expected_tokens if learnt is not None else UNKNOWN_OUTPUT_TOKENS

    def learn_prompt(self, base: str, tenant: str, prompt_bytes: int, prompt_tokens: int) -> None:
        self._prompts.get_or_create((base, tenant)).learn(prompt_bytes, prompt_tokens)

    def learn_answer(self, model: str, tenant: str, tokens: int, cut: bool) -> None:
        self._answers.get_or_create((model, tenant)).learn(tokens, cut)

    def __len__(self) -> int:
        """Return the number of entries in both maps, of prompts and of answers."""
        return len(self._prompts) + len(self._answers)
