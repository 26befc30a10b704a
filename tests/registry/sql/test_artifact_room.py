"""Storage that counts against a tenant: artifacts of its versions, and those used within the collector's grace."""

from collections.abc import Iterator

import pytest

from functions.registry.sql import artifacts, catalogue_writes
from functions.registry.sql.artifacts import ByteLimit, StoredArtifact
from functions.registry.sql.audit import Actor
from functions.registry.sql.catalogue_writes import NewVersion
from functions.registry.sql.database import Database
from functions.registry.sql.errors import CatalogueRefused
from tests.registry.catalogue_rig import LIMITS

DAY_S = 86_400.0
LIMIT = ByteLimit(100, grace_s=DAY_S)
CI = Actor("key:ci")


class Days:
    """A tenant that publishes, at an installation without a collector."""

    def __init__(self, database: Database) -> None:
        self.database = Database(database.url, clock=lambda: self.now_unix_s)
        self.database.ready = True
        self.now_unix_s = 1e9

    def store(self, letter: str, size_bytes: int = 60) -> None:
        row = StoredArtifact("sha256:" + letter * 64, "acme", "", size_bytes, {})
        self.database.write(CI, lambda write: artifacts.put_artifact(write, row, LIMIT))

    def name(self, letter: str) -> None:
        new = NewVersion("acme/bot", "acme", "base", f"v-{letter}", "sha256:" + letter * 64, "", "default")
        self.database.write(CI, lambda write: catalogue_writes.put_version(write, new, LIMITS))

    def delete(self, letter: str) -> None:
        existing, delete = catalogue_writes.require_model, catalogue_writes.delete_version
        self.database.write(CI, lambda write: delete(write, existing(write, "acme/bot"), f"v-{letter}"))


@pytest.fixture
def days(database: Database) -> Iterator[Days]:
    made = Days(database)
    yield made
    made.database.close()


def test_unnamed_artifact_frees_its_room_after_the_grace(days: Days) -> None:
    days.store("a")
    days.name("a")
    days.now_unix_s += 9 * DAY_S
    with pytest.raises(CatalogueRefused, match="60 bytes of artifacts, and these 60 would be over the limit of 100"):
        days.store("b")
    days.delete("a")
    with pytest.raises(CatalogueRefused, match="counts for 86400 s more"):
        days.store("b")
    days.now_unix_s += DAY_S + 1
    days.store("b")


def test_artifact_that_no_longer_counts_needs_room_again(days: Days) -> None:
    days.store("a")
    days.store("a")  # already counted
    days.now_unix_s += DAY_S + 1
    days.store("b")
    with pytest.raises(CatalogueRefused, match="over the limit of 100"):
        days.store("a")
