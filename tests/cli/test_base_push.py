"""`shoal base push`: the name of a model's weights, and the line in git that gets the version."""

import pytest

from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.locations import WeightsName
from functions.cli.base_push import parse_target


@pytest.mark.parametrize(
    ("target", "model", "weights"),
    [
        ("llama-3-8b@v1", "llama-3-8b", WeightsName("llama-3-8b", "v1")),
        ("acme/wiki@v1", "acme/wiki", WeightsName("acme.wiki", "v1")),
        ("shoal://acme.wiki@v1", "acme.wiki", WeightsName("acme.wiki", "v1")),
    ],
)
def test_a_tenants_own_models_weights_go_by_its_pools_name(target: str, model: str, weights: WeightsName) -> None:
    assert parse_target(target) == (model, weights)


@pytest.mark.parametrize("target", ["acme/wiki", "a/b/c@v1", "@v1", "acme/@v1", "acme/wiki@../v1"])
def test_what_names_no_version_is_refused(target: str) -> None:
    with pytest.raises(ArtifactRefused):
        parse_target(target)
