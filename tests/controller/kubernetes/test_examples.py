"""The repository's own examples on the real API server: each set is accepted completely and converges."""

from pathlib import Path

import pytest

from functions.api.loader import load_directory
from functions.controller.kubernetes.render import render
from tests.controller.kubernetes.api_server import budget_kind
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[3]
FOLDERS = ("inferenceservices", "policies", "registry")


@pytest.mark.parametrize("which", ["demo", "fleet"])
def test_example_is_accepted_and_converges(space: Space, which: str) -> None:
    paths = (
        [file for folder in FOLDERS for file in sorted((ROOT / folder).glob("*.yaml"))]
        if which == "demo"
        else [ROOT / folder / "fleet" for folder in FOLDERS]
    )
    loaded = load_directory(paths, relative_to=ROOT)
    rendered = render(loaded, "local", namespace=space.models, budget_kind=budget_kind(space.client))
    assert rendered.problems == ()
    fleet = Fleet(space)
    outcome = fleet.converge(rendered.desired)
    services = [ref for ref in outcome.health if ref.kind == "InferenceService"]
    assert len(services) == (1 if which == "demo" else 6)
    assert fleet.kserve.restarts == {}
