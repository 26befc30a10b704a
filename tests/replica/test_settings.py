"""Settings: error messages for a wrong environment."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from functions.replica.settings import ReplicaSettings

_NEEDED = {
    "REPLICA_ID": "smollm2-135m-0",
    "POOL": "smollm2-135m",
    "INTERNAL_TOKEN_FILE": "/nowhere/token",
    "S3_CREDENTIALS_FILE": "/nowhere/s3.json",
    "CACHE_DIR": "/nowhere/cache",
    "SNAPSHOT_CACHE_FILE": "/nowhere/snapshot.json",
}


def settings_from(monkeypatch: pytest.MonkeyPatch, **changes: str) -> ReplicaSettings:
    for name, value in {**_NEEDED, **changes}.items():
        monkeypatch.setenv(f"SHOAL_REPLICA_{name}", value)
    return ReplicaSettings()


def test_the_defaults_are_the_local_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_from(monkeypatch, REGISTRY_CA_FILE="", BUS_PASSWORD_FILE="")
    assert settings.engine_url == "http://127.0.0.1:8460"
    assert settings.registry_ca_file is None
    assert settings.cache_dir == Path("/nowhere/cache")
    assert settings.probe_timeout_s > settings.stalled_after_s
    assert (settings.peer_host, settings.peer_port, settings.signature_key_files) == ("127.0.0.1", 8500, ())


def test_signature_keys_are_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_from(monkeypatch, SIGNATURE_KEY_FILES='["/keys/a.pem", "/keys/b.pem"]', SIGNATURES_REQUIRED="1")
    assert settings.signature_key_files == (Path("/keys/a.pem"), Path("/keys/b.pem"))
    assert settings.signatures_required


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REPLICA_ID", "a b"),
        ("REPLICA_ID", "r0\n"),
        ("POOL", "UPPER"),
        ("POOL", "a/b"),
        ("ENGINE_PORT", "0"),
        ("ENGINE_HOST", "127.0.0.1:80"),
        ("ENGINE_HOST", "fd00::7]:80"),
        ("ENGINE_HOST", "engine:80"),
        ("DRAIN_TIMEOUT_S", "0"),
        ("STALLED_AFTER_S", "nan"),
        ("MAX_ADAPTERS", "-1"),
        ("PEER_PORT", "65536"),
        ("ZONE", "a b"),
        ("CACHE_MAX_BYTES", "1000"),
        ("SIGNATURE_KEY_FILES", '{"a": 1}'),
    ],
)
def test_invalid_settings_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=name.lower()):
        settings_from(monkeypatch, **{name: value})


def test_missing_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NEEDED:
        monkeypatch.delenv(f"SHOAL_REPLICA_{name}", raising=False)
    with pytest.raises(ValidationError) as caught:
        ReplicaSettings()
    assert {str(error["loc"][0]).upper() for error in caught.value.errors()} == set(_NEEDED)
