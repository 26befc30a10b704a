"""Role of a pool next to others of its model: `prefill` computes prompts for those, and answers no request itself.

Such an InferenceService has three facts, next to the label that names its model:

    label       shoal.dev/role: prefill
    annotation  shoal.dev/kv-bytes-per-token               of the KV cache: 2 x layers x KV heads x head size x bytes
    annotation  shoal.dev/kv-transfer-gigabits-per-s       between a replica of this pool and one that decodes

The gateway compares the time that a prompt takes here and in transfer with its time in the decode pool
(`functions.decisions.routing.disaggregation`). A prefill pool without the two figures is therefore a finding.
KServe's LLMInferenceService is not read; docs/decisions/0060 has the reason and a comparison.

Worked example (test_bytes_per_token_of_the_prologue): 32 layers, 8 KV heads of 128 in 16 bits: 2 x 32 x 8 x 128 x 2
= 131,072 bytes a token. At 100 Gbit/s a prompt of 8,192 tokens, 1 GiB, takes 86 ms to transfer.
"""

import re
from collections.abc import Iterator, Mapping

from functions.api.kinds.base import Finding
from functions.api.problems import shown
from functions.api.snapshot_entries import PoolRole

ROLE_LABEL = "shoal.dev/role"
KV_BYTES_ANNOTATION = "shoal.dev/kv-bytes-per-token"
KV_RATE_ANNOTATION = "shoal.dev/kv-transfer-gigabits-per-s"
MAX_KV_BYTES = 16 * 1024 * 1024  # per token; the largest models need some hundred kilobytes
BYTES_PER_GIGABIT = 125_000_000

_RATE = re.compile(r"\d{1,5}(?:\.\d{1,3})?")


def role(labels: Mapping[str, str]) -> PoolRole:
    """Return the pool's role by its label: `prefill`, or empty for none. An invalid label is a finding, and counts as
    none."""
    return "prefill" if labels.get(ROLE_LABEL) == "prefill" else ""


def kv_bytes_per_token(annotations: Mapping[str, str]) -> int | None:
    """Return the annotated KV bytes per token; None without a valid number."""
    text = annotations.get(KV_BYTES_ANNOTATION, "")
    return int(text) if text.isdecimal() and 0 < int(text[:9]) <= MAX_KV_BYTES else None


def kv_transfer_bytes_per_s(annotations: Mapping[str, str]) -> float | None:
    """Return the annotated transfer rate (written in Gbit/s) in bytes per second; None without a valid one."""
    text = annotations.get(KV_RATE_ANNOTATION, "")
    return float(text) * BYTES_PER_GIGABIT if _RATE.fullmatch(text) is not None and float(text) > 0.0 else None


def findings(labels: Mapping[str, str], annotations: Mapping[str, str], *, is_beside: bool) -> Iterator[Finding]:
    """Yield problems of a pool's role. `is_beside`: True if it serves another pool's model."""
    said = labels.get(ROLE_LABEL)
    path = ("metadata", "labels", ROLE_LABEL)
    if said is not None and said != "prefill":
        yield Finding(path, f"found {shown(said)}; allowed: prefill, or no such label")
    elif said is not None and not is_beside:
        yield Finding(path, "requires the label shoal.dev/model, which names the pool whose prompts it computes")
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
