"""The project's configuration with a few lines changed, for fleets that differ from the shipped one."""

import re
from pathlib import Path

from tests.fleets import PROJECT

# Engines are slowed, stopped and killed on a shared machine; requests must not be rejected for that.
PATIENT = ("policies/admission.yaml", "ttftSlo: 500ms, maxWait: 10s", "ttftSlo: 500ms, maxWait: 120s")

QUOTAS = "policies/quotas.yaml"
_RATES = re.compile(r"(concurrentRequests|\w+PerMinute|gpuSecondsPerHour): \d+")
NO_LIMIT = 100_000_000

SCALING = "policies/autoscaling.yaml"
FOLDERS = ("inferenceservices", "policies", "registry")


def project_with(folder: Path, *edits: tuple[str, str, str]) -> Path:
    """Return a copy of the YAML in `folder`; each edit is a file, a text that occurs once, and its replacement."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        for file in (PROJECT / name).glob("*.yaml"):
            (folder / name / file.name).write_text(file.read_text())
    (folder / "registry" / "adapters").symlink_to(PROJECT / "registry" / "adapters")
    for name, old, new in edits:
        text = (folder / name).read_text()
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        (folder / name).write_text(text.replace(old, new))
    return folder


def without_limits(project: Path) -> Path:
    """Raise the tiers in a copied project so that no tenant reaches its limits.

    Hundreds of streams start at once, before answer lengths are known, and a shared machine measures accelerator time.
    """
    quotas = project / QUOTAS
    text, limits = _RATES.subn(rf"\1: {NO_LIMIT}", quotas.read_text())
    assert limits >= 2
    quotas.write_text(text)
    return project


def without_scaling(project: Path) -> Path:
    """Remove autoscaling from a copied project, so that a busy machine adds no replicas."""
    (project / SCALING).unlink()
    listed = project / "policies" / "kustomization.yaml"
    text = listed.read_text()
    assert text.count("  - autoscaling.yaml\n") == 1
    listed.write_text(text.replace("  - autoscaling.yaml\n", ""))
    return project
