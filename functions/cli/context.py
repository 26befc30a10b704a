"""Context of a command: the fleet that it is about, by settings, by state directory, or by the clone it is called in.

A clone of a fleet's repository says so in its remotes: so `shoal diff` and `shoal status` answer where people edit,
without a setting that says where the fleet's state is.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from functions.cli.refused import CommandRefused
from functions.controller.gitops import record as records
from functions.controller.gitops.following import LAST_GOOD
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.source import GitSource
from functions.controller.gitops.words import problem_lines
from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import Pool, PoolUnusable, pools_of
from functions.controller.local.ports import PORTS_PREFIX, PortPlan, as_environment, plan_ports, with_saved_ports
from functions.controller.local.regions import regions_of, settings_of
from functions.controller.local.settings import LocalSettings
from functions.fleet.regions import RegionAddress, RegionsUnreadable

GIT_TIMEOUT_S = 10.0


def remotes_of(root: Path) -> list[Path]:
    """Return the remotes of a working copy that are directories of this machine; empty if it is not a working copy."""
    command = ["git", "-C", str(root), "config", "--local", "--get-regexp", r"^remote\..*\.url$"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    urls = [line.partition(" ")[2].removeprefix("file://") for line in done.stdout.splitlines()]
    return [(root / url).resolve() for url in urls if "://" not in url]


def is_clone_of(repository: Path, root: Path) -> bool:
    return repository.resolve() in remotes_of(root)


def state_dir_of_clone(root: Path) -> Path | None:
    """Return the state directory of the fleet whose repository `root` is a clone of, or None."""
    layouts = [StateLayout.at(remote.parent) for remote in remotes_of(root)]
    return next((layout.root for layout in layouts if layout.gitops_dir.is_dir() and layout.ca_file.is_file()), None)


def toplevel_of(start: Path) -> Path | None:
    """Return the top of the working copy that contains a directory, or None."""
    command = ["git", "-C", str(start), "rev-parse", "--show-toplevel"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None


@dataclass(frozen=True, slots=True)
class BranchPools:
    """Pools that the fleet's branch declares, read like the controller reads them but without one."""

    pools: tuple[Pool, ...]
    notes: list[str]


def read_branch(layout: StateLayout) -> BranchPools:
    """Return the pools of the branch's tip, or of the last good revision. Fail if neither can be used."""
    source = GitSource(layout.gitops_dir)
    try:
        tip = source.read_tip()
        if tip.loaded is not None:
            return BranchPools(pools_of(tip.loaded), [])
        good = records.read(layout.revisions_file).last_good
        commit = good.rpartition("@")[2] or source.git.commit_of(LAST_GOOD)
        former = source.read_commit(commit) if commit else None
        if former is not None and former.loaded is not None:
            good = f"{source.branch}@{former.commit[:SHORT_COMMIT]}"
            note = f"{source.branch} has mistakes, so {good} stays in use: `shoal status` shows them"
            return BranchPools(pools_of(former.loaded), [note])
    except GitFailed as error:
        raise CommandRefused(f"{layout.gitops_dir} cannot be read: {error}") from error
    except PoolUnusable as error:
        raise CommandRefused(f"this machine cannot run the configuration: {error}") from error
    lines = "\n".join(problem_lines(tip.problems, tip.texts))
    raise CommandRefused(f"the configuration in {layout.gitops_dir} has mistakes:\n{lines}")


@dataclass(frozen=True, slots=True)
class CliContext:
    settings: LocalSettings
    layout: StateLayout
    ports: PortPlan

    @property
    def gateway_url(self) -> str:
        """URL by the name localhost, for which the certificate is valid, as it is for the address."""
        return f"https://localhost:{self.ports.gateway}"

    @property
    def registry_url(self) -> str:
        return f"https://localhost:{self.ports.registry}"

    def environment(self) -> dict[str, str]:
        """Return this process's environment plus absolute paths, so that the controller may start in any directory."""
        place = {"SHOAL_STATE_DIR": str(self.layout.home)}
        ours = dict(os.environ)
        if self.layout.region is not None:
            place["SHOAL_REGION"] = self.layout.region
            ours = {name: value for name, value in ours.items() if not name.startswith(PORTS_PREFIX)}
        return {
            **ours,
            **place,
            "SHOAL_PROJECT_DIR": str(self.settings.project_dir.resolve()),
            "SHOAL_ENGINE_VENV": str(self.settings.engine_venv.absolute()),
            "PYTHONSAFEPATH": "1",
            **as_environment(self.settings),
        }


def read_settings() -> LocalSettings:
    try:
        return LocalSettings()
    except ValidationError as error:
        wrong = "; ".join(f"SHOAL_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise CommandRefused(f"a setting in the environment is wrong: {wrong}") from error


def current_context(*, clones: bool = False) -> CliContext:
    """Return the context of the chosen fleet.

    With `clones`, a command in a clone of a fleet's repository uses that fleet, unless SHOAL_STATE_DIR is set or the
    default state directory holds a fleet.
    """
    settings = read_settings()
    layout = StateLayout.at(settings.state_dir, settings.region)
    if clones and "SHOAL_STATE_DIR" not in os.environ and not layout.ca_file.is_file():
        layout = StateLayout.at(state_dir_of_clone(Path.cwd()) or layout.home, settings.region)
    if settings.region is not None:
        return _in_region(settings, layout, settings.region)
    settings = with_saved_ports(settings, layout, os.environ)
    return CliContext(settings, layout, plan_ports(settings))


def _in_region(settings: LocalSettings, layout: StateLayout, region: str) -> CliContext:
    """Return the context of a region, with the ports of its first start. Port variables of the shell do not apply."""
    try:
        known = regions_of(layout)
    except RegionsUnreadable as error:
        raise CommandRefused(str(error)) from error
    if region not in known:
        there = f"regions: {', '.join(sorted(known))}" if known else "there are none"
        raise CommandRefused(
            f"the region {region} was never started here ({there}): `shoal up --region {region}` creates it"
        )
    return context_of(settings, layout, known[region])


def context_of(settings: LocalSettings, layout: StateLayout, address: RegionAddress) -> CliContext:
    settings = settings_of(settings, address)
    return CliContext(settings, layout, plan_ports(settings))


SHORT_COMMIT = 10
