"""Length model of prompts and answers, from engines' counts: bytes a token, 95th percentile of answers.

Bytes a token, per (base model, tenant), weighted by tokens, so that many short prompts do not outvote a long one:

    bytes_per_token = B / T,     B <- 0.95 B + bytes of a prompt,     T <- 0.95 T + its tokens

beginning with 4,000 bytes and 1,000 tokens: English under a 50k-word vocabulary. A prompt is then taken for
`ceil(1.1 x bytes / bytes_per_token)` tokens, on the side of too many, since quotas reserve by it.
Worked example (test_bytes_a_token_follow_what_was_counted): one prompt of 3,000 bytes and 1,500 tokens makes
(0.95 x 4,000 + 3,000) / (0.95 x 1,000 + 1,500) = 2.78; a prompt of 1,000 bytes then counts as 397 tokens.

Answers, per (model, tenant): buckets that grow by 5 %, from 64 to 4,096 tokens, so that a quantile is never too small
and at most 5 % too large; all counts are halved at 512 answers, so that the past fades. Fewer than 14 answers do not
say that answers are short: of 14, the longest is more likely than not (1 - 0.95^14 = 51 %) at or above the true one.
Until then it is 256, one step of those by which a stream's reservation grows, or the longest so far if that is more: a
tenant's first streams may begin side by side, and what they take beyond it is known after the first of them.
Worked example (test_the_percentile_of_answers): 95 answers of 100 tokens and five of 2,000: the bucket of 100 ends at
104, and 104 are expected; with one more answer of 2,000, 2,044.

An answer that was cut by its own limit says only that it would have been longer, so it is learnt only where it is
longer than what is expected already (test_answers_cut_short_do_not_teach_that_answers_are_short).

Both maps are bounded, and forget what has learnt nothing for longest. Neighbours: `functions.gateway.intake.features`.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from math import ceil, floor, log
from typing import Generic, TypeVar

START_BYTES_PER_TOKEN = 4.0
SAFETY_RATIO = 1.1
UNKNOWN_OUTPUT_TOKENS = 256  # per choice, where nothing was learnt
LEAST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS = 64, 4096
MAX_ENTRIES = 20_000  # of each kind: 8 MB together

_KEPT_RATIO = 0.95  # of what was learnt before, with each prompt
_START_TOKENS = 1000.0
_MAX_SAMPLE_TOKENS = 8192  # one prompt's weight
_BYTES_PER_TOKEN_RANGE = (1.0, 16.0)  # byte-level vocabularies have no token below a byte; indentation has long ones

_GROWTH = 1.05
_LOG_GROWTH = log(_GROWTH)
_BUCKETS = ceil(log(MOST_OUTPUT_TOKENS / LEAST_OUTPUT_TOKENS) / _LOG_GROWTH) + 1
_QUANTILE = 0.95
_MIN_ANSWERS = 14
_HALVED_AT = 512


class BytesPerToken:
    """Of one tenant's prompts for one base model."""

    __slots__ = ("_bytes", "_tokens", "ratio")

    def __init__(self) -> None:
        self._bytes, self._tokens = START_BYTES_PER_TOKEN * _START_TOKENS, _START_TOKENS
        self.ratio = START_BYTES_PER_TOKEN

    def learn(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """One prompt of text; what cannot be is pulled to what can."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        least, most = _BYTES_PER_TOKEN_RANGE
        tokens = min(prompt_tokens, _MAX_SAMPLE_TOKENS)
        self._bytes = _KEPT_RATIO * self._bytes + min(max(prompt_bytes / prompt_tokens, least), most) * tokens
        self._tokens = _KEPT_RATIO * self._tokens + tokens
        self.ratio = self._bytes / self._tokens


class AnswerLengths:
    """The 95th percentile of one tenant's answers from one model, kept up to date as they come: O(1) on average."""

    __slots__ = ("_above", "_at", "_count", "_counts", "expected_tokens")

    def __init__(self) -> None:
        self._counts = array("H", bytes(2 * _BUCKETS))
        self._count = 0
        self._at = 0  # the bucket of the quantile: the smallest beyond which lie at most 5 in 100
        self._above = 0  # answers in buckets beyond it
        self.expected_tokens = UNKNOWN_OUTPUT_TOKENS

    def learn(self, tokens: int, cut: bool) -> None:
        """One answer's length; `cut` where its own limit ended it."""
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


# Each answer asks for both: looked up, they take a tenth of a logarithm and a power.
_BUCKET_OF = bytes(_bucket_of(tokens) for tokens in range(MOST_OUTPUT_TOKENS + 1))
_UPPER_EDGE = tuple(_upper_edge(bucket) for bucket in range(_BUCKETS))


Learnt = TypeVar("Learnt")


class _Entries(Generic[Learnt]):
    """By two names; those that learnt least recently go first. Reading moves nothing."""

    __slots__ = ("_entries", "_make", "_max_entries", "find")

    def __init__(self, make: Callable[[], Learnt], max_entries: int) -> None:
        self._entries: OrderedDict[tuple[str, str], Learnt] = OrderedDict()
        self._make = make
        self._max_entries = max_entries
        self.find: Callable[[tuple[str, str]], Learnt | None] = self._entries.get

    def to_teach(self, key: tuple[str, str]) -> Learnt:
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
    """Owned by one event loop."""

    __slots__ = ("_answers", "_prompts")

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._prompts: _Entries[BytesPerToken] = _Entries(BytesPerToken, max_entries)
        self._answers: _Entries[AnswerLengths] = _Entries(AnswerLengths, max_entries)

    def prompt_tokens(self, base: str, tenant: str, prompt_bytes: int) -> int:
        """About how many tokens a text is, rather too many."""
        learnt = self._prompts.find((base, tenant))
        return ceil(SAFETY_RATIO * prompt_bytes / (learnt.ratio if learnt is not None else START_BYTES_PER_TOKEN))

    def bytes_per_token(self, base: str, tenant: str) -> float:
        learnt = self._prompts.find((base, tenant))
        return learnt.ratio if learnt is not None else START_BYTES_PER_TOKEN

    def output_tokens(self, model: str, tenant: str) -> int:
        """How long one answer will be at most, 95 times in 100; not knowing its limit."""
        learnt = self._answers.find((model, tenant))
        return learnt.expected_tokens if learnt is not None else UNKNOWN_OUTPUT_TOKENS

    def learn_prompt(self, base: str, tenant: str, prompt_bytes: int, prompt_tokens: int) -> None:
        self._prompts.to_teach((base, tenant)).learn(prompt_bytes, prompt_tokens)

    def learn_answer(self, model: str, tenant: str, tokens: int, cut: bool) -> None:
        self._answers.to_teach((model, tenant)).learn(tokens, cut)

    def __len__(self) -> int:
        """Entries of both kinds."""
        return len(self._prompts) + len(self._answers)
