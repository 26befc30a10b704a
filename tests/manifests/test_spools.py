"""A gateway's disk holds the trace rows of an hour without the trace store.

    needed = requests/s x 3,600 s x bytes a row + one file, which must fit before the oldest is deleted

At 100 requests a second: 100 x 3,600 x 1,200 + 32 MiB = 466 MB, of 512 MiB available. In production a gateway has at
most half of that rate.
"""

import pytest

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.gateway.usage.spool import SPOOL_BYTES as USAGE_BYTES
from functions.telemetry.trace_row import encode
from functions.telemetry.trace_sink import FILE_BYTES
from loadtests.traces.rows import row
from tests.manifests.rendering import Rendering
from tests.manifests.sizing import quantity, sizing_of

REQUESTS_PER_S = 100
ROW_BYTES = 1_200  # a row of an adapter with names of usual length has about 970
AWAY_S = 3600


@pytest.fixture(params=["staging", "production"])
def overlay(request: pytest.FixtureRequest) -> Rendering:
    found: Rendering = request.getfixturevalue(request.param)
    return found


def test_an_hour_without_the_trace_store_fits_a_gateways_files(overlay: Rendering) -> None:
    """The default of 256 MiB is full after 40 minutes; the oldest rows would be lost before the store returns."""
    needed = REQUESTS_PER_S * AWAY_S * ROW_BYTES + FILE_BYTES
    assert needed <= sizing_of(overlay).gateway_settings.trace_max_bytes


def test_a_gateway_has_no_more_requests_than_that(production: Rendering) -> None:
    sizing = sizing_of(production)
    assert sizing.requests_per_s / sizing.gateways <= REQUESTS_PER_S


def test_a_row_is_no_larger_than_is_counted_with() -> None:
    assert len(encode(row("0af7651916cd43dd8448eb211c80319c", 1_764_000_000.123456))) + 1 <= ROW_BYTES


def test_a_gateways_volume_holds_all_that_it_keeps(overlay: Rendering) -> None:
    """A pod that exceeds the limit of an emptyDir is evicted with all its streams."""
    settings = sizing_of(overlay).gateway_settings
    pod = overlay.one("Service", "gateway", group="serving.knative.dev")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "state"]
    kept = settings.trace_max_bytes + settings.tokenizers_cache_max_bytes + USAGE_BYTES + 3 * SNAPSHOT_MAX_BYTES
    assert kept <= quantity(volume["emptyDir"]["sizeLimit"])
