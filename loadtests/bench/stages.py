"""A profile of the gateway by stages of a request, from py-spy's stacks.

A sample counts for the innermost frame that belongs to a stage. Work of a library (JSON, a hash) therefore counts for
the stage that called it. System calls are a stage of their own.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

KERNEL = "the kernel: write, read, wait"
LOOP = "the event loop and its callbacks"
_REST = "the rest: heartbeats, other threads"

_STAGES: Mapping[str, tuple[str, ...]] = {
    "client's connection: parse, write": ("gateway/http/lane", "gateway/http/guarded", "gateway/http/sink"),
    "head, key": ("gateway/http/headers", "gateway/intake/auth", "decisions/request/access"),
    "body: JSON, fields": ("gateway/intake/json_body", "gateway/intake/fields"),
    "lengths, prompt hashes, length model": (
        *("gateway/intake/lengths", "gateway/intake/features", "gateway/prefix/prompt_", "decisions/quota/caps"),
        *("decisions/prefix/block_names", "decisions/request/length_model", "decisions/request/features"),
    ),
    "quotas: reserve, settle, headers": ("gateway/quota", "decisions/quota", "decisions/request/cost"),
    "admission queue": ("gateway/admission", "decisions/admission", "decisions/overload"),
    "routing": (
        *(
            "gateway/routing",
            "gateway/prefix/index",
            "gateway/prefix/exact",
            "decisions/routing",
            "decisions/prefix",
            "decisions/adapters",
        ),
        *("decisions/health/circuit_breaker", "decisions/health/ejection", "fleet/view", "fleet/standing"),
    ),
    "heartbeats, leases, snapshots: outside requests": ("fleet/", "gateway/feeds", "gateway/prefix/feeds"),
    "engine's connection": ("gateway/request/upstream",),
    "the answer: check, count, rename": (
        "gateway/request/answers",
        "gateway/request/relay",
        "gateway/request/dialects",
        "gateway/request/named",
    ),
    "headers out": ("gateway/request/replies",),
    "metrics": ("gateway/metrics", "gateway/gauges", "gateway/prefix/metrics", "telemetry/cells"),
    "trace": ("gateway/tracing", "telemetry/trace"),
    "request handling: the rest": (
        *("gateway/gateway", "gateway/request", "gateway/intake", "gateway/services", "gateway/tenant_limits"),
        *("decisions/catalogue", "decisions/health/quarantine"),
    ),
}
_FRAME = re.compile(r"(?P<name>.+?) \((?P<file>[^():]+)(?::\d+)?\)")
_CALLS = re.compile(r"_*(libc_)?(writev?|readv?|recv(msg)?|send(msg|to)?|epoll_p?wait)\d*")


def shares(stacks: Iterable[str]) -> dict[str, float]:
    """Return each stage's share of the samples, the largest first. `stacks` are lines of py-spy's `--format raw`."""
    counts: Counter[str] = Counter()
    for line in stacks:
        stack, _, samples = line.strip().rpartition(" ")
        if stack:
            counts[stage_of(stack.split(";"))] += int(samples)
    total = sum(counts.values())
    return {stage: count / total for stage, count in counts.most_common()} if total else {}


def stage_of(frames: list[str]) -> str:
    """Return the stage of one stack. `frames` are `name (file:line)`, the outermost first."""
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
