"""`shoal drill` with Prometheus beside the fleet: the shipped alert fires on a real fault and clears after it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.projects import project_with, without_limits
from tests.fleets import Fleet, running_fleet

pytestmark = [pytest.mark.servers, pytest.mark.drill]


@pytest.fixture(scope="module")
def watched_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Run two simulated replicas in two zones, with accelerators that can fail, and Prometheus; `maxWait` as shipped.

    If requests may wait longer than a drill's client does, an overload ends in clients that give up: the newest go
    first, and no request is refused before the admission queue is full.
    """
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("watched")
    project = without_limits(project_with(folder / "project"))
    variables = {
        "SHOAL_PROMETHEUS": "true",
        "SHOAL_ZONES": "2",
        "SHOAL_SIMULATED_ACCELERATORS": "true",
        "SHOAL_CONTROLLER_SLOW_BACKOFF_S": "30",
    }
    with running_fleet(folder / "state", "sim", project=project, variables=variables) as fleet:
        yield fleet


@pytest.mark.timeout(600)
def test_the_alert_of_a_bus_that_hangs_fires_and_clears(watched_fleet: Fleet) -> None:
    done = watched_fleet.shoal("drill", "bus-away", "--tenant", "acme", "-o", "json", timeout_s=500.0)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = json.loads(done.stdout)["reports"]
    assert made["alert_checked"] and made["alert_fired_after_s"] is not None, made["alerts"]
    assert made["alert_cleared_after_s"] is not None and made["wrongly_failed"] == 0
    assert made["accounts"]["ledger_tokens"] >= made["accounts"]["owed_tokens"] > 0
    assert any("shoal_bus_up" in name for name in made["recorded"]["series"])


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_all_drills_pass(watched_fleet: Fleet, tmp_path: Path) -> None:
    arguments = ("drill", "--all", "--tenant", "acme", "--plot", str(tmp_path), "-o", "json")
    done = watched_fleet.shoal(*arguments, timeout_s=5000.0)
    told = json.loads(done.stdout)
    failed = {made["drill"]: [each for each in made["checks"] if each["ok"] is False] for made in told["reports"]}
    assert (told["not_played"], {name: wrong for name, wrong in failed.items() if wrong}) == ([], {})
    assert {file.stem for file in tmp_path.iterdir()} == failed.keys()
