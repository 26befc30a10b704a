"""Reader of slo.yaml: each profile's default load and its thresholds. Errors name unknown keys."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.locust.slo import BadThreshold, Threshold, parse

SHIPPED = Path(__file__).parent / "slo.yaml"
STAGING = Path(__file__).parent / "staging-slo.yaml"
NONE = "none"  # instead of a file
_LOAD = ("users", "spawn_rate", "run_time")


@dataclass(frozen=True, slots=True)
class Profile:
    load: dict[str, Any]
    thresholds: list[Threshold]


def read(path: Path, profile: str) -> Profile:
    """Read one profile; raise BadThreshold. A profile that is not in the file has neither load nor thresholds."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadThreshold(f"{path} cannot be read: {error}") from None
    found = _mapping(path, "the file", content).get(profile) or {}
    parts = _mapping(path, profile, found)
    for key in parts:
        if key not in ("load", "slo"):
            raise BadThreshold(f"{path}: {profile}.{key}: unknown key; allowed are load and slo")
    load = _mapping(path, f"{profile}.load", parts.get("load") or {})
    for key in load:
        if key not in _LOAD:
            raise BadThreshold(f"{path}: {profile}.load.{key}: unknown key; allowed are {', '.join(_LOAD)}")
    limits = _mapping(path, f"{profile}.slo", parts.get("slo") or {})
    try:
        return Profile(load, [parse(str(name), value) for name, value in limits.items()])
    except BadThreshold as error:
        raise BadThreshold(f"{path}: {profile}.slo.{error}") from None


def load_for(arguments: list[str]) -> dict[str, Any]:
    """Return the profile's load from the file of Locust's command line, or from the shipped one; raise BadThreshold."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--slo-file", default=NONE)
    file = parser.parse_known_args(arguments[1:])[0].slo_file
    return read(Path(file) if file != NONE else SHIPPED, profile_of(arguments)).load


def profile_of(arguments: list[str]) -> str:
    """Return the name of the locustfile of `-f FILE`. A list of several matches no profile: it has no thresholds."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-f", "--locustfile", default=os.environ.get("LOCUST_LOCUSTFILE", ""))
    return Path(parser.parse_known_args(arguments[1:])[0].locustfile).stem


def _mapping(path: Path, what: str, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise BadThreshold(f"{path}: {what} is no mapping")
    return content
