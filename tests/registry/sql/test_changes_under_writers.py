"""A follower of the changes misses no row and no part of a write while others write."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from functions.registry.sql import artifacts, catalogue_writes, changes
from functions.registry.sql.artifacts import StoredArtifact
from functions.registry.sql.audit import Actor
from functions.registry.sql.catalogue import StoredModel
from functions.registry.sql.catalogue_writes import CatalogueLimits, NewVersion
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from functions.registry.sql.transaction import Write

CI = Actor("key:ci")
LIMITS = CatalogueLimits(models_per_tenant=100, versions_per_model=100, channels_per_model=10)
DIGEST = "sha256:" + "a" * 64
WRITERS, WRITES = 6, 25


def twins(name: str, version: str) -> list[NewVersion]:
    """Two models that one write changes together: a follower must see both at the same version."""
    return [NewVersion(f"acme/{name}-{twin}", "acme", "base", version, DIGEST, "", None) for twin in ("left", "right")]


def test_follower_gets_all_writes_of_two_registries(database: Database, url: str | None, tmp_path: Path) -> None:
    other = Database(database_url(url, tmp_path))
    database.write(CI, lambda write: artifacts.put_artifact(write, StoredArtifact(DIGEST, "acme", "", 1, {})))

    def write_all(writer: int) -> None:
        for number in range(WRITES):

            def write(it: Write, number: int = number) -> None:
                for new in twins(f"m{(writer + number) % 3}", f"w{writer}-{number}"):
                    catalogue_writes.put_version(it, new, LIMITS)

            (database, other)[writer % 2].write(CI, write)

    seen: dict[str, StoredModel] = {}
    after = 0
    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(write_all, writer) for writer in range(WRITERS)]
        while True:
            ended = all(each.done() for each in writers)
            page = database.read(lambda c, after=after: changes.changes_after(c, after, 20))  # type: ignore[misc]
            assert page.change >= after
            seen |= {model.id: model for model in page.models}
            for model in page.models:
                left, right = (seen[f"{model.id.rpartition('-')[0]}-{twin}"] for twin in ("left", "right"))
                assert (left.change, left.versions) == (right.change, right.versions)
            if ended and page.change == after and not page.more:
                break
            after = page.change
    for each in writers:
        each.result()
    whole = database.read(lambda c: changes.changes_after(c, 0))
    assert {model.id: model for model in whole.models} == seen
    assert sum(len(model.versions) for model in seen.values()) == 2 * WRITERS * WRITES
    other.close()
