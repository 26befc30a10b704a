"""Evidence on a rollout's two groups: counts and three distributions each, and the time of the last update.

Between tokens every gap of a stream counts, and every stream has the same weight: its gaps share `STREAM_SHARES`. So
one long stream proves no more than one request can (`conditions`). Worked example
(test_a_stall_in_a_stream_is_a_share_of_it): one gap of 5 s among 500 gets 2 of the 1,000 shares.

All values are cumulative over one trial (one stage of one attempt), so a lost message loses no data. The gateway
decides what an error is, and which requests count.

In messages a distribution is the counts of its buckets; `decode` and `group_of` reject values out of bounds.
Neighbours: gateways gather evidence, the registry adds it up, `evaluation` judges it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from functions.decisions.quantile_sketch import FIRST_BUCKET, LAST_BUCKET, MAX_BUCKETS, QuantileSketch

EVIDENCE_MAX_BYTES = 256 * 1024
STREAM_SHARES = 1000

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Bucket = Annotated[int, msgspec.Meta(ge=FIRST_BUCKET, le=LAST_BUCKET)]
Buckets = Annotated[dict[Bucket, Annotated[int, msgspec.Meta(ge=1, le=10**12)]], msgspec.Meta(max_length=MAX_BUCKETS)]


class EvidenceInvalid(Exception):
    """The message is no valid evidence; drop it and count it."""


@dataclass(slots=True)
class GroupStats:
    """Values of one group, with a single writer. A failed request has only the latencies that it reached."""

    requests: int = 0  # requests that ended
    errors: int = 0  # failed ones among them
    ttft_ms: QuantileSketch = field(default_factory=QuantileSketch)
    inter_token_ms: QuantileSketch = field(default_factory=QuantileSketch)  # in shares of streams
    total_ms: QuantileSketch = field(default_factory=QuantileSketch)

    def merge(self, other: "GroupStats") -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.ttft_ms.merge(other.ttft_ms)
        self.inter_token_ms.merge(other.inter_token_ms)
        self.total_ms.merge(other.total_ms)

    def add_gaps(self, gaps: Sequence[tuple[int, int]]) -> None:
        """Add the inter-token gaps of one stream, ascending as (bucket, count); each stream counts the same,
        STREAM_SHARES, however many gaps it has."""
        total = sum(count for _, count in gaps)
        passed = shared = 0
        for bucket, count in gaps:
            passed += count
            until = passed * STREAM_SHARES // total
            if until > shared:
                self.inter_token_ms.add_to(bucket, until - shared)
                shared = until

    @property
    def error_ratio(self) -> float | None:
        return self.errors / self.requests if self.requests else None


@dataclass(slots=True)
class TrialEvidence:
    candidate: GroupStats = field(default_factory=GroupStats)
    control: GroupStats = field(default_factory=GroupStats)
    heard_unix_s: float | None = None  # last report of any gateway on this trial; None: none yet


class EncodedGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One group in a message."""

    requests: Count = 0
    errors: Count = 0
    ttft_ms: Buckets = {}
    inter_token_ms: Buckets = {}  # one mean per stream: gateways up to 0.10
    total_ms: Buckets = {}
    gap_shares: Buckets = {}


class EncodedEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    candidate: EncodedGroup
    control: EncodedGroup
    heard_unix_s: float | None = None


def encoded_group(group: GroupStats) -> EncodedGroup:
    return EncodedGroup(
        requests=group.requests,
        errors=group.errors,
        ttft_ms=group.ttft_ms.buckets(),
        total_ms=group.total_ms.buckets(),
        gap_shares=group.inter_token_ms.buckets(),
    )


def group_of(encoded: EncodedGroup) -> GroupStats:
    """Return the group's statistics. EvidenceInvalid if the numbers contradict each other, ValueError for an invalid
    bucket."""
    if encoded.errors > encoded.requests:
        raise EvidenceInvalid(f"{encoded.errors} errors among {encoded.requests} requests")
    group = GroupStats(
        encoded.requests,
        encoded.errors,
        QuantileSketch.from_buckets(encoded.ttft_ms),
        QuantileSketch.from_buckets(encoded.gap_shares),
        QuantileSketch.from_buckets(encoded.total_ms),
    )
    for bucket, count in encoded.inter_token_ms.items():
        group.inter_token_ms.add_to(bucket, count * STREAM_SHARES)
    streams = group.inter_token_ms.count / STREAM_SHARES
    if max(group.ttft_ms.count, streams, group.total_ms.count) > encoded.requests:
        raise EvidenceInvalid(f"more latencies than the {encoded.requests} requests")
    return group


def encode(evidence: TrialEvidence) -> bytes:
    encoded = EncodedEvidence(encoded_group(evidence.candidate), encoded_group(evidence.control), evidence.heard_unix_s)
    return msgspec.json.encode(encoded)


def to_builtins(evidence: TrialEvidence) -> Any:
    """Return the evidence as plain values, for a route that encodes JSON itself."""
    return msgspec.json.decode(encode(evidence))


def decode(document: bytes) -> TrialEvidence:
    """Return the evidence in a message. EvidenceInvalid if the bytes are none, or their numbers contradict each
    other."""
    if len(document) > EVIDENCE_MAX_BYTES:
        raise EvidenceInvalid(f"{len(document)} bytes is over the limit of {EVIDENCE_MAX_BYTES}")
    try:
        encoded = msgspec.json.decode(document, type=EncodedEvidence)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EvidenceInvalid(str(error)) from error
    return TrialEvidence(group_of(encoded.candidate), group_of(encoded.control), encoded.heard_unix_s)
