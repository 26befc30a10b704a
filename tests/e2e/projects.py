"""The project's configuration with a few lines changed, for fleets that a test needs otherwise than they ship."""

import re
from pathlib import Path

from tests.fleets import PROJECT

# Engines are slowed, stopped and killed, and the machine is shared: nobody shall be refused for that.
PATIENT = ("policies/admission.yaml", "ttftSlo: 500ms, maxWait: 10s", "ttftSlo: 500ms, maxWait: 120s")

QUOTAS = "policies/quotas.yaml"
_RATES = re.compile(r"(concurrentRequests|\w+PerMinute|gpuSecondsPerHour): \d+")
NO_LIMIT = 100_000_000

SCALING = "policies/autoscaling.yaml"
FOLDERS = ("inferenceservices", "policies", "registry")


def project_with(folder: Path, *edits: tuple[str, str, str]) -> Path:
    """A copy of the YAML in `folder`; each edit is a file, a text that occurs in it once, and what takes its place."""
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
    """Of that copy: no tenant uses up its tier. Hundreds of streams begin at the same moment, before anything is known
    of how long answers get, and what each costs in accelerator time is measured on a machine that others use, too."""
    quotas = project / QUOTAS
    text, limits = _RATES.subn(rf"\1: {NO_LIMIT}", quotas.read_text())
    assert limits >= 2
    quotas.write_text(text)
    return project


def without_scaling(project: Path) -> Path:
    """Of that copy: a busy machine gives no pool more replicas, and pools have what their YAML says at any time."""
    (project / SCALING).unlink()
    listed = project / "policies" / "kustomization.yaml"
    text = listed.read_text()
    assert text.count("  - autoscaling.yaml\n") == 1
    listed.write_text(text.replace("  - autoscaling.yaml\n", ""))
    return project
