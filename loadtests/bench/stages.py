"""A profile of the gateway by what a request goes through, from py-spy's stacks: which stage had the processor.

A sample counts for the innermost frame that belongs to a stage, so that what a library does (JSON, a hash) counts for
who asked for it; the kernel's calls count for themselves, whoever made them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

KERNEL = "the kernel: write, read, wait"
LOOP = "the event loop and its callbacks"
_REST = "the rest: heartbeats, other threads"

_STAGES: Mapping[str, tuple[str, ...]] = {
    "client's connection: parse, write": ("gateway/lane", "gateway/guarded", "gateway/sink"),
    "head, key": ("gateway/request_headers", "gateway/known_keys", "decisions/access", "gateway/mandates"),
    "body: JSON, fields": ("gateway/strict_json", "gateway/fields", "gateway/media"),
    "lengths, prompt's hashes, and what is learnt": (
        *("gateway/lengths", "gateway/features", "gateway/prompt_", "decisions/prefix_blocks", "decisions/quota_caps"),
        *("decisions/length_model", "decisions/request_features"),
    ),
    "quotas: reserve, settle, headers": (
        *("gateway/quota", "decisions/quota_", "decisions/token_bucket", "decisions/request_cost"),
    ),
    "waiting room": (
        *("gateway/waiting_room", "decisions/admission", "decisions/fair_queue", "decisions/bands"),
        *("decisions/drain_rate", "decisions/overload"),
    ),
    "routing": (
        *("gateway/router", "gateway/prefixes", "gateway/session", "gateway/adapter_copies", "gateway/exact_"),
        *("decisions/rout", "decisions/prediction", "decisions/replicas", "decisions/own_load", "fleet/view"),
        *("fleet/standing", "decisions/prefix_record", "decisions/adapter", "decisions/bloom", "decisions/breaker"),
    ),
    "beats, leases, snapshots: not of a request": ("fleet/", "gateway/feeds", "gateway/prefix_feeds"),
    "engine's connection": ("gateway/upstream",),
    "the answer: check, count, rename": ("gateway/relay", "gateway/dialects", "gateway/named_events"),
    "headers out": ("gateway/answers", "gateway/timeline"),
    "metrics": ("gateway/metrics", "gateway/prefix_figures", "telemetry/cells"),
    "trace": ("gateway/tracing", "telemetry/trace"),
    "the request's own course": (
        *("gateway/core", "gateway/exchange", "gateway/attempt", "gateway/intake", "gateway/splits"),
        *("gateway/hedging", "gateway/quarantine", "decisions/retry", "decisions/catalogue", "decisions/quarantine"),
    ),
}
_FRAME = re.compile(r"(?P<name>.+?) \((?P<file>[^():]+)(?::\d+)?\)")
_CALLS = re.compile(r"_*(libc_)?(writev?|readv?|recv(msg)?|send(msg|to)?|epoll_p?wait)\d*")


def shares(stacks: Iterable[str]) -> dict[str, float]:
    """Of the samples in which the processor was had, each stage's part, the largest first; lines as `--format raw`."""
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, samples = line.strip().rpartition(" ")
        if stack:
            counts[stage_of(stack.split(";"))] += int(samples)
    total = sum(counts.values())
    return {stage: count / total for stage, count in counts.most_common()} if total else {}


def stage_of(frames: list[str]) -> str:
    """`frames` from the outermost in, each `name (file:line)`."""
    for frame in reversed(frames):
        parsed = _FRAME.fullmatch(frame)
        if parsed is None:
            continue
        if _CALLS.fullmatch(parsed["name"]):
            return KERNEL
        stage = _by_file(parsed["file"])
        if stage is not None:
            return stage
    return LOOP if any("Loop" in frame or "uv_" in frame for frame in frames) else _REST


def _by_file(file: str) -> str | None:
    _, found, ours = file.rpartition("functions/")
    if not found:
        return None
    return next((stage for stage, files in _STAGES.items() if ours.startswith(files)), None)
