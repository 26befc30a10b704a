"""Accepted source URIs; each form that hides another location is refused with its reason."""

import pytest

from functions.api.ids import TenantId
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.ingest import IngestPolicy
from functions.artifacts.ingest.sources import HttpsSource, S3Source, parse_source

ACME = TenantId("acme")
POLICY = IngestPolicy(https_hosts=("models.example.com", "files.example.com:8443"))


def place(uri: str, tenant: TenantId | None = ACME, policy: IngestPolicy = POLICY) -> S3Source | HttpsSource:
    return parse_source(uri, policy, own_bucket="shoal-models", tenant=tenant)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://shoal-models/acme/bot/v1", S3Source("shoal-models", "acme/bot/v1")),
        ("s3://shoal-models/acme/bot/v1/", S3Source("shoal-models", "acme/bot/v1")),
        ("https://models.example.com/acme/bot", HttpsSource("models.example.com", 443, "/acme/bot")),
        ("https://models.example.com/acme/bot/", HttpsSource("models.example.com", 443, "/acme/bot")),
        ("https://models.example.com:443/a", HttpsSource("models.example.com", 443, "/a")),
        ("https://models.example.com", HttpsSource("models.example.com", 443, "/")),
        ("https://files.example.com:8443/~me/A_b-1.0", HttpsSource("files.example.com", 8443, "/~me/A_b-1.0")),
    ],
)
def test_allowed_places(uri: str, expected: S3Source | HttpsSource) -> None:
    assert place(uri) == expected


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("", "has no scheme"),
        ("acme/bot/v1", "has no scheme"),
        ("//models.example.com/a", "has no scheme"),
        ("file:///etc/passwd", "has the scheme 'file'"),
        ("http://models.example.com/a", "has the scheme 'http'"),
        ("HTTPS://models.example.com/a", "has the scheme 'HTTPS'"),
        ("ftp://models.example.com/a", "has the scheme 'ftp'"),
        ("gopher://127.0.0.1:6379/_x", "has the scheme 'gopher'"),
        ("s3a://shoal-models/acme/bot", "has the scheme 's3a'"),
        # folders of other tenants and of the store itself
        ("s3://shoal-models/globex/bot/v1", "names only its own folder"),
        ("s3://shoal-models/acme", "names only its own folder"),
        ("s3://shoal-models/acme2/bot", "names only its own folder"),
        ("s3://shoal-models/chunks/sha256/aa", "the store's own folders"),
        ("s3://shoal-models/acme/../globex/bot", "is not of the form"),
        ("s3://shoal-models/acme//bot", "is not of the form"),
        ("s3://shoal-models//acme/bot", "is not of the form"),
        ("s3://other-bucket/acme/bot", "lies in bucket 'other-bucket'"),
        ("s3://shoal-models@evil/acme/bot", "lies in bucket"),
        ("s3://169.254.169.254/acme/bot", "lies in bucket"),
        ("s3://shoal-models/acme/bot?versionId=1", "is not of the form"),
        ("s3://shoal-models/acme/%2e%2e/globex", "a percent sign"),
        # hosts that are not what they look like
        ("https://evil.example.net/a", "is on evil.example.net, which is not allowed"),
        ("https://models.example.com.evil.net/a", "which is not allowed"),
        ("https://models.example.com:8443/a", "which is not allowed"),
        ("https://files.example.com/a", "which is not allowed"),
        ("https://models.example.com@evil.net/a", "names a user"),
        ("https://user:secret@models.example.com/a", "names a user"),
        ("https://models.example.com./a", "ends in a dot"),
        ("https://Models.example.com/a", "not a plain lower-case name"),
        ("https://models.example.com:/a", "has the port"),
        ("https://models.example.com:0443/a", "has the port"),
        ("https://models.example.com:99999/a", "has the port"),
        ("https://models.example.com:443:443/a", "has the port"),
        ("https:///a", "not a plain lower-case name"),
        ("https://-models.example.com/a", "not a plain lower-case name"),
        ("https://mod_els.example.com/a", "not a plain lower-case name"),
        # addresses in every spelling
        ("https://127.0.0.1/a", "names the address 127.0.0.1"),
        ("https://2130706433/a", "names the address 2130706433"),
        ("https://0x7f000001/a", "names the address 0x7f000001"),
        ("https://0x7f.0.0.0x1/a", "names the address"),
        ("https://0177.0.0.01/a", "names the address"),
        ("https://127.1/a", "names the address"),
        ("https://127.0.0.1./a", "names the address"),
        ("https://[::1]/a", "names the address"),
        ("https://[::ffff:127.0.0.1]:443/a", "names the address"),
        ("https://[fe80::1%25eth0]/a", "a percent sign"),
        # characters that two parsers could interpret differently
        ("https://models.example.com\\@evil.net/a", "a backslash"),
        ("https://models.example.com/a b", "a space"),
        ("https://models.example.com/a\r\nHost: evil", "outside plain ASCII"),
        ("https://models.example.com/a\x00", "outside plain ASCII"),
        ("https://mödels.example.com/a", "outside plain ASCII"),
        ("https://models。example。com/a", "outside plain ASCII"),
        ("https://models.example.com/%2e%2e/a", "a percent sign"),
        ("https://models.example.com/../a", "a path with other than"),
        ("https://models.example.com//a", "a path with other than"),
        ("https://models.example.com/.git", "a path with other than"),
        ("https://models.example.com/a;b", "a path with other than"),
        ("https://models.example.com/" + "a/" * 20, "a path with other than"),
        ("https://models.example.com/a?x=1", "a query or a fragment"),
        ("https://models.example.com?x=1", "a query or a fragment"),
        ("https://models.example.com/a#b", "a query or a fragment"),
        ("https://models.example.com/" + "a" * 700, "is over"),
    ],
)
def test_refused_places(uri: str, words: str) -> None:
    with pytest.raises(ArtifactRefused, match=words):
        place(uri)


def test_nothing_on_the_network_is_allowed_by_default() -> None:
    with pytest.raises(ArtifactRefused, match="allowed: none"):
        place("https://models.example.com/a", policy=IngestPolicy())


def test_the_operator_may_name_any_folder() -> None:
    assert place("s3://shoal-models/globex/bot/v1", tenant=None) == S3Source("shoal-models", "globex/bot/v1")


def test_buckets_of_the_policy_replace_the_stores_own() -> None:
    policy = IngestPolicy(s3_buckets=("incoming",))
    assert place("s3://incoming/acme/bot", policy=policy) == S3Source("incoming", "acme/bot")
    with pytest.raises(ArtifactRefused, match="allowed: incoming"):
        place("s3://shoal-models/acme/bot", policy=policy)
