"""Engines follow no redirects when they fetch a tenant's image: gateways check only the first host."""

import pytest

from tests.manifests.rendering import Rendering

NO_REDIRECTS = {"name": "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "value": "0"}


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_every_runtime_follows_none(overlay: str, request: pytest.FixtureRequest) -> None:
    rendering: Rendering = request.getfixturevalue(overlay)
    engines = [
        container
        for runtime in rendering.of("ServingRuntime", "ClusterServingRuntime")
        for container in runtime["spec"]["containers"]
        if any("vllm" in word for word in container.get("command", []))
    ]
    assert engines
    for engine in engines:
        assert NO_REDIRECTS in engine["env"], engine["name"]


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_no_pool_allows_them_again(overlay: str, request: pytest.FixtureRequest) -> None:
    rendering: Rendering = request.getfixturevalue(overlay)
    for service in rendering.of("InferenceService"):
        env = service["spec"]["predictor"].get("model", {}).get("env", [])
        assert all(each == NO_REDIRECTS for each in env if each["name"] == NO_REDIRECTS["name"]), service["metadata"]
