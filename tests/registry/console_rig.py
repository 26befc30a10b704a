"""A registry process whose fleet has hostile names in it, for tests of its console and of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from functions.api import snapshot as snapshots
from functions.api.ids import Digest
from functions.controller.snapshot.compile import compile_snapshot, unpinned_artifacts
from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout.events import VersionLoaded
from functions.decisions.rollout.lifecycle import RolloutSpec, id_of
from functions.fleet.snapshots import SNAPSHOT_PATH
from tests.cli.rollouts import POLICY
from tests.controller.configs import base, load, lora, pool, tenant, tier
from tests.ports import free_port
from tests.registry.test_process import environment, registry

DIGESTS = {"v1": Digest("sha256:" + "1" * 64), "v2": Digest("sha256:" + "2" * 64)}
HOSTILE = "<img src=x onerror=\"document.title='broken into'\"> & [bold]"


@dataclass
class ConsoleRig:
    url: str
    state_dir: Path
    client: httpx.Client

    def rollout(self, channel: str = "stable", *, loaded: bool = True) -> str:
        """Start a rollout of acme/bot from v1 to v2; return its id."""
        spec = RolloutSpec(
            model="acme/bot",
            channel=channel,
            pool="base",
            from_version="v1",
            from_digest=DIGESTS["v1"],
            from_artifact_uri="s3://models/acme/bot/v1",
            to_version="v2",
            to_digest=DIGESTS["v2"],
            to_artifact_uri="s3://models/acme/bot/v2",
            policy=POLICY,
            origin="git",
        )
        id_ = id_of(spec)
        made = self.client.put(f"/internal/v1/rollouts/{id_}", content=rollout_codec.encode(spec))
        assert made.status_code in (200, 201), made.text
        if loaded:
            event = rollout_codec.encode(VersionLoaded()).decode()
            body = f'{{"event": {event}, "lock_version": 0}}'
            assert self.client.post(f"/internal/v1/rollouts/{id_}/events", content=body).status_code == 200
        return str(id_)

    def state_of(self, rollout: str) -> dict[str, Any]:
        row: dict[str, Any] = self.client.get(f"/v1/rollouts/{rollout}").json()
        return row


def published() -> bytes:
    objects = load("---\n".join((tier(), pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1", "v2")))).objects
    digests = {uri: DIGESTS[uri.rpartition("/")[2]] for uri in unpinned_artifacts(objects) if uri[-2:] in DIGESTS}
    missing = dict.fromkeys(set(unpinned_artifacts(objects)) - set(digests), DIGESTS["v1"])
    it = compile_snapshot(objects, digests | missing, epoch=7, revision="main@abc", compiled_unix_s=0.0).snapshot
    return snapshots.encode(it)


@contextmanager
def console_rig(folder: Path) -> Iterator[ConsoleRig]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (folder / "pepper").write_text("0123456789abcdef" * 2)
    with registry(
        environment(
            folder,
            port,
            SHOAL_REGISTRY_PEPPER_FILE=str(folder / "pepper"),
            SHOAL_REGISTRY_DRILLS_DIR=str(folder / "state" / "drills"),
        ),
        url,
    ) as client:
        assert client.put(SNAPSHOT_PATH, content=published()).status_code == 204
        yield ConsoleRig(url, folder / "state", client)
