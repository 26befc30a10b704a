"""Known vulnerabilities of every pinned version: `make audit`, with advisories from a local folder.

    SHOAL_OSV_DIR=/data/osv make audit       # all.zip of OSV's PyPI advisories, or its JSON files

Exit codes:
0   checked: every vulnerability found is accepted, or none was found
1   a vulnerability is not accepted, or its acceptance has expired
2   accepted.toml cannot be read
3   not checked: no data, broken data, or data that is too old

accepted.toml lists accepted vulnerabilities, each with a reason and a last day. No package index is queried: some serve
no advisories, and a check that reports "none" because of a missing answer is worse than no check.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from requirements.advisories import ECOSYSTEM, Advisory, Unreadable, read
from requirements.pins import LOCKS, all_locks, pins

VARIABLE = "SHOAL_OSV_DIR"
ACCEPTED = LOCKS / "accepted.toml"
MAX_AGE_DAYS = 30  # new advisories appear daily; check a release with data of the same week
GOOD, FOUND, USAGE, NO_DATA = 0, 1, 2, 3
_Text = Annotated[str, msgspec.Meta(min_length=1)]
Pinned = Mapping[tuple[str, Version], frozenset[str]]  # by name and version, the locks that pin it


class Acceptance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _Text  # advisory id or alias
    package: _Text
    reason: _Text
    expires: date  # last day of the acceptance

    def is_for(self, finding: "Finding") -> bool:
        return canonicalize_name(self.package) == finding.package and self.id in finding.names


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accepted: tuple[Acceptance, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    package: str
    version: Version
    names: frozenset[str]  # advisory id and aliases
    summary: str
    fixed_in: str | None
    locks: frozenset[str]

    @property
    def words(self) -> str:
        fixed = f"fixed in {self.fixed_in}" if self.fixed_in else "no fixed version is named"
        where = ", ".join(sorted(self.locks))
        return f"{self.package} {self.version}: {', '.join(sorted(self.names))}: {self.summary}; {fixed} ({where})"


def pinned(locks: Iterable[Path]) -> Pinned:
    """Return all pins. A local version (torch's +cpu) counts as the public version that it was built from."""
    found: dict[tuple[str, Version], set[str]] = defaultdict(set)
    for lock in locks:
        for pin in pins(lock):
            found[pin.name, Version(pin.version.public)].add(lock.name)
    return {key: frozenset(names) for key, names in sorted(found.items())}


def findings(asked: Pinned, advisories: Iterable[Advisory]) -> list[Finding]:
    """Return one finding for each package and vulnerability: advisories that share an alias are one vulnerability."""
    versions: dict[str, list[Version]] = defaultdict(list)
    for name, version in asked:
        versions[name].append(version)
    found: list[Finding] = []
    for advisory in advisories:
        for affected in advisory.affected or () if advisory.withdrawn is None else ():
            for version in versions.get(affected.name or "", ()):
                if affected.holds(version):
                    key = (str(affected.name), version)
                    fix = affected.fixed_in(version)
                    found.append(Finding(*key, advisory.names, advisory.summary, fix, asked[key]))
    return _merged(found)


def _merged(found: Sequence[Finding]) -> list[Finding]:
    merged: list[Finding] = []
    for finding in sorted(found, key=lambda each: (each.package, each.version, sorted(each.names))):
        same = [each for each in merged if _is_one(each, finding)]
        merged = [each for each in merged if each not in same]
        fixes = [each.fixed_in for each in (*same, finding) if each.fixed_in]
        merged.append(
            Finding(
                finding.package,
                finding.version,
                finding.names.union(*(each.names for each in same)),
                next((each.summary for each in (*same, finding) if each.summary), "no summary"),
                max(fixes, key=Version) if fixes else None,
                finding.locks,
            )
        )
    return merged


def _is_one(one: Finding, other: Finding) -> bool:
    return (one.package, one.version) == (other.package, other.version) and bool(one.names & other.names)


def report(found: Sequence[Finding], accepted: Sequence[Acceptance], today: date) -> int:
    """Print each finding and its acceptance. Return FOUND if one is not accepted or its acceptance has expired."""
    open_ = 0
    for finding in found:
        acceptance = next((each for each in accepted if each.is_for(finding)), None)
        if acceptance is None:
            mark = "FOUND"
        elif acceptance.expires < today:
            mark = f"EXPIRED on {acceptance.expires} ({acceptance.reason})"
        else:
            print(f"accepted until {acceptance.expires} ({acceptance.reason}): {finding.words}")
            continue
        open_ += 1
        print(f"{mark}: {finding.words}")
    for each in accepted:
        if not any(each.is_for(finding) for finding in found):
            print(f"accepted, but not found: {each.package} {each.id}; remove it from {ACCEPTED.name}")
    print(f"{open_} to fix, {len(found) - open_} accepted")
    return FOUND if open_ else GOOD


def main(arguments: Sequence[str], locks: Sequence[Path] | None = None, today: date | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make audit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get(VARIABLE) or None, help=f"advisories (default: {VARIABLE})"
    )
    parser.add_argument("--accepted", type=Path, default=ACCEPTED)
    parser.add_argument("--max-age-days", type=int, default=MAX_AGE_DAYS)
    chosen = parser.parse_args(arguments)
    today = today or datetime.now(UTC).date()
    if chosen.data is None or not chosen.data.exists():
        there = f"{chosen.data} does not exist" if chosen.data else f"{VARIABLE} is not set"
        return _nothing_said(f"{there}. Set {VARIABLE} to OSV's all.zip of {ECOSYSTEM} or a folder of its JSON files.")
    try:
        accepted = msgspec.toml.decode(chosen.accepted.read_bytes(), type=Accepted).accepted
    except (OSError, msgspec.DecodeError) as error:
        print(f"{chosen.accepted}: {error}", file=sys.stderr)
        return USAGE
    try:
        advisories = list(read(chosen.data))
    except (OSError, Unreadable) as error:
        return _nothing_said(str(error))
    if not advisories:
        return _nothing_said(f"{chosen.data} holds no advisory about a Python package")
    newest = max(each.modified for each in advisories).date()
    asked = pinned(locks if locks is not None else all_locks())
    print(f"checked {len(asked)} packages against data of {newest}: {len(advisories)} advisories")
    status = report(findings(asked, advisories), accepted, today)
    age_days = (today - newest).days
    if status == GOOD and age_days > chosen.max_age_days:
        return _nothing_said(f"the data is {age_days} days old, over {chosen.max_age_days}: download new data")
    return status


def _nothing_said(why: str) -> int:
    print(f"NOT CHECKED: {why}", file=sys.stderr)
    return NO_DATA


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
