"""Messages about rollouts for status, audit and command line. Pure functions."""

from math import exp, log

from functions.decisions.rollout.conditions import ConditionFinding, Unit
from functions.decisions.rollout.lifecycle import Rollout


def finding_text(finding: ConditionFinding) -> str:
    """Return a sentence such as `error_rate > 2%: 5.2% against 0.3% (weight 1310, 1200 halts)`."""
    shared = "; the old version breaches it too" if finding.is_shared else ""
    figures = f"{amount(finding.candidate, finding.unit)} against {amount(finding.control, finding.unit)}"
    weight = "over 1e6" if finding.log_weight > log(1e6) else f"{exp(finding.log_weight):.3g}"
    return f"{finding.text}: {figures} (weight {weight}, {exp(finding.log_needed):.4g} halts){shared}"


def amount(value: float | None, unit: Unit) -> str:
    if value is None:
        return "nothing"
    return f"{value:.2%}" if unit == "ratio" else f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def seconds_text(seconds: float) -> str:
    """Format seconds as `45 s` (below 120 s), `5m 0s` (below 2 hours), `2h 5m`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60}m {whole % 60}s" if whole < 7200 else f"{whole // 3600}h {whole % 3600 // 60}m"


def rollout_text(rollout: Rollout) -> str:
    """Return a sentence such as `acme/bot:stable goes from v1 to v2, stage 1 of 4 (1%)`."""
    move = f"{rollout.model}:{rollout.channel} goes from {rollout.from_version} to {rollout.to_version}"
    stage = f"stage {rollout.stage + 1} of {len(rollout.policy.stages)} ({rollout.current.percent}%)"
    match rollout.state:
        case "loading":
            return f"{move}, {rollout.to_version} is being loaded"
        case "running":
            return f"{move}, {stage}"
        case "paused":
            return f"{move}, {rollout.reason} at {stage if rollout.loaded else 'loading'}"
        case "rolled_back":
            return f"{rollout.model}:{rollout.channel} stays {rollout.from_version}: {rollout.reason}"
        case _:
            return f"{move}: {rollout.reason}"
