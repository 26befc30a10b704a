"""Removal by docs/how-to/kubernetes.md leaves nothing, and a new installation works; these tests run last.

They run only if the environment names the overlay to delete and a command that installs it again, so that no
installation is removed by accident.
"""

import os
import shlex
import subprocess
import time

import pytest

from tests.cluster.conftest import Accounts
from tests.cluster.declarations import ByKubectl
from tests.cluster.installation import SYSTEM, Installation

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
OVERLAY, INSTALL = "SHOAL_CLUSTER_OVERLAY", "SHOAL_CLUSTER_INSTALL"
REMOVED_S, INSTALLED_S = 900.0, 1800.0


@pytest.fixture(scope="module")
def overlay() -> str:
    missing = [name for name in (OVERLAY, INSTALL) if not os.environ.get(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not set: nothing is removed")
    return os.environ[OVERLAY]


def test_removal_ends_and_leaves_nothing(installation: Installation, accounts: Accounts, overlay: str) -> None:
    began_s = time.monotonic()
    installation.kubectl("-n", "shoal", "delete", "shoal", "--all", timeout_s=REMOVED_S)
    print(f"the objects are gone after {time.monotonic() - began_s:.1f} s")
    installation.kubectl("-n", SYSTEM, "delete", "ksvc", "--all", "--cascade=foreground", timeout_s=REMOVED_S)
    print(f"gateway and registry are gone after {time.monotonic() - began_s:.1f} s")
    installation.kubectl("delete", "--ignore-not-found", "-k", overlay, timeout_s=REMOVED_S)
    print(f"the overlay is gone after {time.monotonic() - began_s:.1f} s")
    installation.kubectl("wait", "--for=delete", "namespace/shoal", "namespace/shoal-models", timeout_s=REMOVED_S)
    crds = installation.kubectl("get", "crds", "-o", "name").split()
    assert not [each for each in crds if each.endswith(".shoal.dev")]
    if isinstance(accounts.declarations, ByKubectl):
        accounts.declarations.sets.clear()


def test_what_was_removed_can_be_installed_again(installation: Installation, accounts: Accounts, overlay: str) -> None:
    began_s = time.monotonic()
    subprocess.run(shlex.split(os.environ[INSTALL]), check=True, timeout=INSTALLED_S)
    print(f"installed in {time.monotonic() - began_s:.0f} s")
    key = accounts.add("acceptance-again", requestsPerMinute=1000)
    print(f"first answer with a new key after {time.monotonic() - began_s:.0f} s")
    assert accounts.answers(key) == 200
