"""What a push would change, in words, before it is accepted: what the data plane would see, and which processes."""

from collections.abc import Iterator

from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.loader import Loaded
from functions.controller.gitops.changes import changes_of, summarize
from functions.controller.local.config_source import pools_of


def changes_in_words(present: Loaded | None, candidate: Loaded) -> tuple[str, ...]:
    """A headline and the first changes; both configurations must be such as this machine can run."""
    lines = summarize(changes_of(present, candidate)).lines
    return (*lines, *_processes(present, candidate))


def _processes(present: Loaded | None, candidate: Loaded) -> Iterator[str]:
    """What takes longer than a snapshot: replicas that are started, drained, or replaced one at a time."""
    before = {pool.name: pool for pool in (pools_of(present) if present is not None else ())}
    after = {pool.name: pool for pool in pools_of(candidate)}
    scaled = {policy.value.spec.pool for policy in candidate.of(AutoscalingPolicy)}
    for name in sorted({*before, *after}):
        was, is_ = before.get(name), after.get(name)
        if was is None or is_ is None:
            what = "its processes are started" if was is None else "its processes are drained, then ended"
            yield f"pool {name}: {what}"
            continue
        if was.replicas != is_.replicas and name in scaled:
            yield (
                f"pool {name}: minReplicas is what it starts with; once it is scaled, its AutoscalingPolicy owns the "
                "number: to have more at any time, raise replicas.min there"
            )
        if (was.model, was.args, was.env) != (is_.model, is_.args, is_.env):
            yield f"pool {name}: other arguments; its replicas are replaced one at a time, each drained first"
