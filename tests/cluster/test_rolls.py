"""A new gateway revision, a changed runtime, `shoal restart` and `shoal drain` lose no request under load.

The first two change an annotation, which remains: pods roll only if their template differs.
"""

import time
from collections.abc import Callable

import pytest

from tests.cluster.callers import load, streams
from tests.cluster.installation import MODELS, Installation, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STREAMS, STREAM_WORDS = 10, 300
RATE_PER_S = 5.0
ROLLED_S = 900.0


def test_gateways_roll_under_load(installation: Installation, key: str) -> None:
    """The roll is complete when all traffic goes to the new revision; old pods stay for their scale-down-delay."""
    stamp = str(time.time_ns())
    change = {"spec": {"template": {"metadata": {"annotations": {"shoal.dev/acceptance": stamp}}}}}

    def rolled() -> bool:
        service = installation.get("ksvc", "gateway")["status"]
        newest = service.get("latestReadyRevisionName", "")
        is_new = service.get("latestCreatedRevisionName") == newest
        return is_new and {each["revisionName"] for each in service["traffic"] if each.get("percent")} == {newest}

    former = installation.get("ksvc", "gateway")["status"]["latestReadyRevisionName"]
    _under_load(
        installation,
        key,
        "gateway",
        lambda: installation.patch("ksvc/gateway", change),
        lambda: installation.get("ksvc", "gateway")["status"]["latestReadyRevisionName"] != former and rolled(),
    )


def test_the_runtime_rolls_under_load(installation: Installation, key: str) -> None:
    before = {pod.name for pod in installation.pods("engine")}
    stamp = str(time.time_ns())

    def rolled() -> bool:
        pods = {pod.name for pod in installation.pods("engine")}
        return len(pods) >= len(before) and not pods & before

    runtime = installation.get("servingruntimes", namespace=MODELS)["items"][0]["metadata"]["name"]
    change = {"spec": {"annotations": {"shoal.dev/acceptance": stamp}}}
    _under_load(
        installation,
        key,
        "runtime",
        lambda: installation.patch(f"servingruntime/{runtime}", change, namespace=MODELS),
        rolled,
    )


def test_a_restarted_pool_is_new_and_a_drained_replica_is_another(installation: Installation, key: str) -> None:
    """The commands change the InferenceService: KServe reverts changes made to its Deployment."""
    before = {pod.name for pod in installation.pods("engine")}
    context = {"SHOAL_CLI_CONTEXT": "-"}

    def ordered(*words: str) -> None:
        done = installation.shoal(*words, **context)
        assert done.returncode == 0, done.stdout + done.stderr

    def restarted() -> bool:
        pods = {pod.name for pod in installation.pods("engine")}
        assert len(pods) >= len(before), "it said that all of its pods are new"
        assert not pods & before, "it said that all of its pods are new"
        return True

    _under_load(installation, key, "restart", lambda: ordered("restart", installation.pool), restarted)
    leaver = installation.pods("engine")[0].name

    def drained() -> bool:
        pods = {pod.name for pod in installation.pods("engine")}
        return len(pods) >= len(before) and leaver not in pods

    _under_load(installation, key, "drain", lambda: ordered("drain", leaver), drained)


def _under_load(
    installation: Installation, key: str, what: str, change: Callable[[], None], rolled: Callable[[], bool]
) -> None:
    with (
        load(installation, key, rate_per_s=RATE_PER_S) as requests,
        streams(installation, key, STREAMS, STREAM_WORDS) as open_streams,
    ):
        began_s = time.monotonic()
        change()
        wait_until(f"{what} rolled", rolled, ROLLED_S, every_s=1.0)
        taken_s = time.monotonic() - began_s
    print(f"{what} rolled in {taken_s:.0f} s; streams: {open_streams.words()}; requests: {requests.words()}")
    assert not open_streams.failed
    assert not requests.failed
    assert len(requests.ended) > RATE_PER_S * taken_s * 0.8
