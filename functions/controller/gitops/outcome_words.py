"""Outcome of a push in one or two lines for the pusher. Pure."""

from functions.controller.gitops.following import Following
from functions.controller.snapshot.publish import PublishOutcome

SHOWN_PROBLEMS = 5


def follow_words(
    following: Following, publication: PublishOutcome, *, live: bool, epoch: int, took_s: float
) -> list[str]:
    """`live`: the gateway has this revision's snapshot, `took_s` after the push was accepted, but for what is held."""
    if following.suspended:
        return ["accepted; the fleet is suspended, so nothing changes until `shoal resume`"]
    held = publication.held[:SHOWN_PROBLEMS]
    if not live:
        waiting = [f"  {flip}" for flip in held]
        return ["accepted; it is being applied: `shoal status` shows how far it is, and why", *waiting]
    desired = following.desired
    lines = [f"live on the gateway as epoch {epoch}, {took_s * 1000:.0f} ms after the push"]
    if desired is not None and not desired.converged:
        lines.append("processes are being changed: `shoal status` shows how far they are")
    problems = publication.problems[:SHOWN_PROBLEMS]
    return [*lines, *(f"but {words}" for words in (*held, *problems))]
