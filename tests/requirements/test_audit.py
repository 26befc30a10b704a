"""Known vulnerabilities of pinned versions: found, accepted for a time, or unknown because of missing data."""

import json
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from requirements import audit
from requirements.advisories import Affected, Event, Range
from requirements.pins import all_locks

TODAY = date(2026, 11, 23)
ADVISORY = "GHSA-aaaa-bbbb-cccc"


def advisory(name: str = ADVISORY, package: str = "Leaky_Pkg", **changes: Any) -> dict[str, Any]:
    events = [{"introduced": "0"}, {"fixed": "1.4.2"}]
    affected = {"package": {"ecosystem": "PyPI", "name": package}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    record = {
        "id": name,
        "modified": "2026-11-20T10:00:00Z",
        "aliases": ["CVE-2026-1"],
        "summary": "it leaks",
        "affected": [affected],
    }
    return record | changes


class Place:
    """A lock with two pins, a folder of advisories, and a list of accepted vulnerabilities."""

    def __init__(self, folder: Path) -> None:
        self.lock, self.data, self.accepted = folder / "role.txt", folder / "osv", folder / "accepted.toml"
        self.data.mkdir()
        self.accepted.write_text("")
        self.pin("leaky-pkg==1.4.1", "sound==2.0")

    def pin(self, *pins: str) -> None:
        entries = (f"{pin} \\\n    --hash=sha256:{'0' * 64}\n" for pin in pins)
        self.lock.write_text("# Made by `make lock`\n" + "".join(entries))

    def knows(self, *records: dict[str, Any]) -> None:
        for record in records:
            (self.data / f"{record['id']}.json").write_text(json.dumps(record))

    def accept(self, name: str, expires: date) -> None:
        lines = f'id = "{name}"\npackage = "leaky_pkg"\nreason = "never reached"\nexpires = {expires}\n'
        self.accepted.write_text("[[accepted]]\n" + lines)

    def audit(self, *more: str) -> int:
        given = ["--data", str(self.data), "--accepted", str(self.accepted), *more]
        return audit.main(given, locks=[self.lock], today=TODAY)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_vulnerability_is_reported_with_its_fix(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.knows(advisory())
    assert place.audit() == audit.FOUND
    out = capsys.readouterr().out
    assert "checked 2 packages against data of 2026-11-20: 1 advisories" in out
    assert f"FOUND: leaky-pkg 1.4.1: CVE-2026-1, {ADVISORY}: it leaks; fixed in 1.4.2 (role.txt)" in out
    assert "1 to fix, 0 accepted" in out


@pytest.mark.parametrize("name", [ADVISORY, "CVE-2026-1"])
def test_acceptance_passes_until_its_last_day(place: Place, capsys: pytest.CaptureFixture[str], name: str) -> None:
    place.knows(advisory())
    place.accept(name, TODAY)
    assert place.audit() == audit.GOOD
    assert "accepted until 2026-11-23 (never reached): leaky-pkg" in capsys.readouterr().out
    place.accept(name, date(2026, 11, 22))
    assert place.audit() == audit.FOUND
    assert "EXPIRED on 2026-11-22 (never reached): leaky-pkg" in capsys.readouterr().out


def test_acceptance_of_another_advisory_does_not_apply(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.knows(advisory())
    place.accept("GHSA-another", TODAY)
    assert place.audit() == audit.FOUND
    assert "accepted, but not found: leaky_pkg GHSA-another" in capsys.readouterr().out


def test_a_version_that_has_the_fix_is_good(place: Place) -> None:
    place.knows(advisory())
    place.pin("leaky-pkg==1.4.2", "sound==2.0")
    assert place.audit() == audit.GOOD


def test_missing_or_broken_data_fails_the_audit(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(audit.VARIABLE, raising=False)
    assert audit.main([], locks=[place.lock], today=TODAY) == audit.NO_DATA
    assert "NOT CHECKED: SHOAL_OSV_DIR is not set" in capsys.readouterr().err
    assert place.audit() == audit.NO_DATA, "an empty folder"
    place.knows(advisory(affected=[{"package": {"ecosystem": "npm", "name": "leaky-pkg"}}]))
    assert place.audit() == audit.NO_DATA, "another ecosystem's"
    assert "holds no advisory about a Python package" in capsys.readouterr().err
    (place.data / "cut.json").write_text('{"id": "GHSA-')
    assert place.audit() == audit.NO_DATA, "a broken file"
    assert "cut.json is not an advisory" in capsys.readouterr().err


def test_old_data_fails_the_audit_but_still_reports_findings(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.knows(advisory(modified="2026-09-01T00:00:00Z"))
    assert place.audit() == audit.FOUND
    place.pin("sound==2.0")
    assert place.audit() == audit.NO_DATA
    assert "NOT CHECKED: the data is 83 days old, over 30" in capsys.readouterr().err
    assert place.audit("--max-age-days", "90") == audit.GOOD


def test_the_archive_is_read_as_it_is_published(place: Place) -> None:
    with zipfile.ZipFile(place.data / "all.zip", "w") as archive:
        archive.writestr(f"{ADVISORY}.json", json.dumps(advisory()))
    assert place.audit() == audit.FOUND
    place.data = place.data / "all.zip"
    assert place.audit() == audit.FOUND


def test_aliases_are_one_finding_and_withdrawn_advisories_none(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.knows(
        advisory(), advisory("PYSEC-2026-7"), advisory("GHSA-gone", aliases=[], withdrawn="2026-11-21T00:00:00Z")
    )
    assert place.audit() == audit.FOUND
    out = capsys.readouterr().out
    assert "1 to fix" in out
    assert f"CVE-2026-1, {ADVISORY}, PYSEC-2026-7" in out
    assert "GHSA-gone" not in out


@pytest.mark.parametrize(
    "text",
    [
        '[[accepted]]\nid = "X"\npackage = "a"\nexpires = 2026-12-01\n',
        '[[accepted]]\nid = "X"\npackage = "a"\nreason = ""\nexpires = 2026-12-01\n',
        '[[accepted]]\nid = "X"\npackage = "a"\nreason = "r"\nexpires = "some day"\n',
    ],
)
def test_an_acceptance_needs_a_reason_and_a_last_day(place: Place, text: str) -> None:
    place.knows(advisory())
    place.accepted.write_text(text)
    assert place.audit() == audit.USAGE


EVENTS = (Event(introduced="2.0"), Event(fixed="2.4.1"), Event(introduced="3.0"), Event(last_affected="3.2"))


@pytest.mark.parametrize(
    ("version", "is_affected", "fix"),
    [
        ("1.9", False, "2.4.1"),
        ("2.0", True, "2.4.1"),
        ("2.4.0.post1", True, "2.4.1"),
        ("2.4.1rc1", True, "2.4.1"),
        ("2.4.1", False, None),
        ("3.0", True, None),
        ("3.2", True, None),
        ("3.2.1", False, None),
    ],
)
def test_range_follows_its_events(version: str, is_affected: bool, fix: str | None) -> None:
    shuffled = Affected(ranges=(Range("ECOSYSTEM", (EVENTS[2], EVENTS[1], EVENTS[3], EVENTS[0])),))
    assert shuffled.holds(Version(version)) is is_affected
    assert shuffled.fixed_in(Version(version)) == fix


def test_listed_and_incomparable_versions_are_affected_commit_ranges_ignored() -> None:
    commits = Range("GIT", (Event(introduced="0"),))
    assert not Affected(ranges=(commits,)).holds(Version("1.0"))
    assert Affected(ranges=(commits,), versions=("1.0.0",)).holds(Version("1.0"))
    assert not Affected(versions=("r13-old",)).holds(Version("1.0"))
    assert Affected(ranges=(Range("ECOSYSTEM", (Event(introduced="r13-old"),)),)).holds(Version("1.0"))


def test_every_pin_of_every_lock_is_checked() -> None:
    asked = audit.pinned(all_locks())
    lines = [line for lock in all_locks() for line in lock.read_text().splitlines() if "==" in line]
    assert {name for name, _ in asked} == {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    assert asked["torch", Version("2.13.0")] == {"engine-torch-cpu.lock.txt", "engine-torch.lock.txt"}
    assert {"gateway.txt", "dev.txt"} <= asked[next(key for key in asked if key[0] == "uvloop")]
