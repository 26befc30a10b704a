"""Role of a pool beside others of its model: `prefill` computes prompts for those, and answers no request by itself.

Three facts stand on such an InferenceService, beside the label that says whose model it serves:

    label       shoal.dev/role: prefill
    annotation  shoal.dev/kv-bytes-per-token               of the KV cache: 2 x layers x KV heads x head size x bytes
    annotation  shoal.dev/kv-transfer-gigabits-per-s       between a replica of this pool and one that decodes

The gateway compares what a prompt takes here and on its way with what it takes where it is decoded
(`functions.decisions.routing.disaggregation`), so a prefill pool without the two figures is a finding, not a guess.
KServe's LLMInferenceService is not read; docs/decisions/0083 says why, and what of it corresponds to what here.

Worked example (test_bytes_per_token_of_the_prologue): 32 layers, 8 KV heads of 128 in 16 bits: 2 x 32 x 8 x 128 x 2 =
131,072 bytes a token. At 100 Gbit/s a prompt of 8,192 tokens, 1 GiB, is on its way for 86 ms.
"""

import re
from collections.abc import Iterator, Mapping

from functions.api.kinds.base import Finding
from functions.api.problems import shown
from functions.api.snapshot_entries import PoolRole

ROLE_LABEL = "shoal.dev/role"
KV_BYTES_ANNOTATION = "shoal.dev/kv-bytes-per-token"
KV_RATE_ANNOTATION = "shoal.dev/kv-transfer-gigabits-per-s"
MAX_KV_BYTES = 16 * 1024 * 1024  # a token's; the largest models have some hundred kilobytes
BYTES_PER_GIGABIT = 125_000_000

_RATE = re.compile(r"\d{1,5}(?:\.\d{1,3})?")


def role(labels: Mapping[str, str]) -> PoolRole:
    """A label that says nothing allowed is a finding, and counts as none."""
    return "prefill" if labels.get(ROLE_LABEL) == "prefill" else ""


def kv_bytes_per_token(annotations: Mapping[str, str]) -> int | None:
    """None where it is not said, or no number of bytes."""
    text = annotations.get(KV_BYTES_ANNOTATION, "")
    return int(text) if text.isdecimal() and 0 < int(text[:9]) <= MAX_KV_BYTES else None


def kv_transfer_bytes_per_s(annotations: Mapping[str, str]) -> float | None:
    """None where it is not said, or no rate."""
    text = annotations.get(KV_RATE_ANNOTATION, "")
    return float(text) * BYTES_PER_GIGABIT if _RATE.fullmatch(text) is not None and float(text) > 0.0 else None


def findings(labels: Mapping[str, str], annotations: Mapping[str, str], *, is_beside: bool) -> Iterator[Finding]:
    """What is wrong with a pool's role. `is_beside`: it serves another pool's model."""
    said = labels.get(ROLE_LABEL)
    path = ("metadata", "labels", ROLE_LABEL)
    if said is not None and said != "prefill":
        yield Finding(path, f"found {shown(said)}; allowed: prefill, or no such label")
    elif said is not None and not is_beside:
        yield Finding(path, "allowed with the label shoal.dev/model: the pool whose prompts it computes")
    needed = said == "prefill"
    for name, value, allowed in (
        (KV_BYTES_ANNOTATION, kv_bytes_per_token(annotations), f"a whole number from 1 to {MAX_KV_BYTES}"),
        (KV_RATE_ANNOTATION, kv_transfer_bytes_per_s(annotations), "a number above 0, such as 100"),
    ):
        found = annotations.get(name)
        if found is not None and value is None:
            yield Finding(("metadata", "annotations", name), f"found {shown(found)}; allowed: {allowed}")
        elif found is None and needed:
            yield Finding(("metadata", "annotations", name), f"is required of a prefill pool: {allowed}")
