"""First requests from outside: whole answers, streams and errors."""

import time

import pytest

from tests.cluster.callers import Call, called
from tests.cluster.installation import Installation

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_every_object_is_ready(installation: Installation) -> None:
    """No shoal object is rejected, and every pool and route is ready."""
    for kind in ("tenants", "models.shoal.dev", "quotapolicies", "routingpolicies", "admissionpolicies"):
        for body in installation.get(kind)["items"]:
            ready = next(each for each in body["status"]["conditions"] if each["type"] == "Ready")
            print(f"{kind}/{body['metadata']['name']}: Ready {ready['status']} {ready['reason']}")
            assert kind == "models.shoal.dev" or ready["status"] == "True", ready
    installation.wait("condition=Ready", "ksvc/gateway", "ksvc/registry", timeout_s=60)
    installation.wait("condition=Ready", "inferenceservice", "--all", namespace="shoal-models", timeout_s=60)


async def test_first_answers(installation: Installation, key: str) -> None:
    async with installation.async_client(key) as client:
        for streamed in (False, True):
            call = await called(client, Call(installation.pool, streamed, 16))
            assert call.whole, call
            assert call.text
            print(
                f"{'streamed' if streamed else 'whole'}: first byte after {call.first_s - call.began_s:.2f} s, "
                f"end after {call.ended_s - call.began_s:.2f} s"
            )


def test_models_are_listed(installation: Installation, key: str) -> None:
    with installation.client(key) as client:
        listed = {each["id"] for each in client.get("/models").raise_for_status().json()["data"]}
    assert installation.pool in listed


@pytest.mark.parametrize(
    ("shown", "model", "status"), [("nobody's key", None, 401), (None, "acceptance/none", 404)], ids=["key", "model"]
)
def test_what_is_unknown_is_refused(
    installation: Installation, key: str, shown: str | None, model: str | None, status: int
) -> None:
    body = {"model": model or installation.pool, "messages": [{"role": "user", "content": "hi"}]}
    began_s = time.monotonic()
    with installation.client(shown or key) as client:
        answer = client.post("/chat/completions", json=body)
    print(f"{answer.status_code} {answer.json()['error']['code']} after {time.monotonic() - began_s:.3f} s")
    assert answer.status_code == status
