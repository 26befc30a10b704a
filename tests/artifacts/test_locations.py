"""Artifact URIs: only URIs in shoal's own bucket are followed."""

import pytest

from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.locations import parse_artifact_uri

BUCKET = "shoal-models"


def test_a_version_points_at_its_manifest() -> None:
    location = parse_artifact_uri("s3://shoal-models/acme/support-bot/v1", bucket=BUCKET)
    assert location.pointer_key == "acme/support-bot/v1/shoal-manifest.json"
    assert location.uri == "s3://shoal-models/acme/support-bot/v1"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "s3://shoal-models",
        "s3://shoal-models/",
        "s3://other-bucket/acme/support-bot/v1",
        "s3://shoal-models/acme/../globex/haiku/v1",
        "s3://shoal-models/acme//v1",
        "s3://shoal-models/acme/v1/",
        "s3://shoal-models/acme/v1?versionId=3",
        "s3://shoal-models/acme/v1#x",
        "s3://user:pw@shoal-models/acme/v1",
        "s3://shoal-models/acme/V1",
        "s3://shoal-models/acme/v%31",
        "S3://shoal-models/acme/v1",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "gopher://shoal-models/acme",
        "s3://shoal-models/blobs/sha256/0",
        "s3://shoal-models/manifests/v1",
        "s3://shoal-models/acme/v1\n",
        "s3://shoal-models/" + "a/" * 400 + "v1",
        "s3://shoal-models/a/b/c/d/e/f/g/h/i",
    ],
)
def test_refuses_the_uri(uri: str) -> None:
    with pytest.raises(ArtifactRefused):
        parse_artifact_uri(uri, bucket=BUCKET)
