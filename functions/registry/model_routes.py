"""`GET /v1/models…`: the catalogue of models declared in git or created through the API, as far as the caller may see
them.

Without a database it shows git's models, and the API's models as they were last published.
"""

from bisect import bisect_right
from collections.abc import Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from functions.api.ids import ModelId
from functions.decisions.catalogue import Catalogue
from functions.registry.conventions import MAX_LIMIT, AfterModel, AfterName, Limit, page_of
from functions.registry.principal import Authenticator, Principal, model_not_found
from functions.registry.sql import catalogue
from functions.registry.sql.catalogue import StoredModel
from functions.registry.sql.database import Database
from functions.registry.store import SnapshotStore
from functions.registry.views import (
    described_model,
    described_stored_model,
    described_version,
    git_models_after,
    may_see,
    with_in_force,
)


def model_routes(store: SnapshotStore, authenticator: Authenticator, database: Database | None) -> APIRouter:
    router = APIRouter()
    look = _CatalogueReader(store, database)

    @router.get("/v1/models")
    async def all_models(
        who: Annotated[Principal, Depends(authenticator.reader)], limit: Limit = MAX_LIMIT, after: AfterModel = ""
    ) -> dict[str, Any]:
        """Models that the caller may see, by id. Models with very many versions make a page shorter than `limit`."""
        stored, is_cut = await look.stored_after(after, limit + 1, who)
        gits = list(islice(git_models_after(look.catalogue, after, who, with_apis=database is None), limit + 1))
        taken = {row["id"] for row in gits}
        apis = [described_stored_model(model) for model in stored if model.id not in taken]
        rows = merge(gits, apis, key=_row_id)
        if is_cut:  # API models after the last one are missing here, so git's models after it go to the next page
            known = list(takewhile(lambda row: row["id"] <= stored[-1].id, rows))[:limit]
            return page_of(known, known[-1]["id"], snapshot_epoch=store.epoch)
        return _page(rows, limit, snapshot_epoch=store.epoch)

    @router.get("/v1/models/{name}")
    async def base_model(name: str, who: Annotated[Principal, Depends(authenticator.reader)]) -> dict[str, Any]:
        """A base model that the caller may see; 404 for others."""
        return await look.describe_model(ModelId(name), who)

    @router.get("/v1/models/{tenant}/{name}")
    async def tenants_model(
        tenant: str, name: str, who: Annotated[Principal, Depends(authenticator.reader)]
    ) -> dict[str, Any]:
        """A model of a tenant that the caller may see; 404 for others."""
        return await look.describe_model(ModelId(f"{tenant}/{name}"), who)

    @router.get("/v1/models/{tenant}/{name}/versions")
    async def versions(
        tenant: str,
        name: str,
        who: Annotated[Principal, Depends(authenticator.reader)],
        limit: Limit = MAX_LIMIT,
        after: AfterName = "",
    ) -> dict[str, Any]:
        """Versions of a model by name, with its pool and the git file that declares it. `in_force` and
        `channels_in_force` show what is published to gateways."""
        model = await look.describe_model(ModelId(f"{tenant}/{name}"), who)
        published = look.catalogue.models.get(ModelId(model["id"]))
        rows = with_in_force(await look.versions(model, after, limit + 1), published)
        channels = published.channels if published is not None else {}
        known = {"pool": model["pool"], "declared_in": model["declared_in"]}
        return _page(rows, limit, **known, channels_in_force=channels, snapshot_epoch=store.epoch)

    return router


class _CatalogueReader:
    def __init__(self, store: SnapshotStore, database: Database | None) -> None:
        self._store = store
        self._database = database

    @property
    def catalogue(self) -> Catalogue:
        return self._store.feed.catalogue

    async def stored_after(self, after: str, limit: int, who: Principal) -> tuple[list[StoredModel], bool]:
        database = self._database
        if database is None:
            return [], False
        return await database.run(lambda: database.read(lambda c: catalogue.models_after(c, after, limit, who.tenant)))

    async def describe_model(self, model: ModelId, who: Principal) -> dict[str, Any]:
        entry = self.catalogue.models.get(model)
        if not may_see(self.catalogue, who, model):
            raise model_not_found(model)
        if entry is not None and (row := described_model(entry))["declared_in"]:
            return row
        stored = await self._stored(model)
        if stored is not None:
            return described_stored_model(stored)
        if entry is not None and self._database is None:
            return row
        raise model_not_found(model)

    async def versions(self, known: dict[str, Any], after: str, limit: int) -> Sequence[dict[str, Any]]:
        """Return up to `limit` versions after the name `after` of a model that `describe_model` has described, by
        name."""
        model, database = ModelId(known["id"]), self._database
        if known["declared_in"] or database is None:
            rows = sorted(known["versions"], key=_row_name)
            return rows[bisect_right(rows, after, key=_row_name) :][:limit]
        found = await database.run(lambda: database.read(lambda c: catalogue.versions_after(c, model, after, limit)))
        return [described_version(model, version) for version in found]

    async def _stored(self, model: ModelId) -> StoredModel | None:
        database = self._database
        if database is None or "\0" in model:  # Postgres rejects NUL, and no name contains one
            return None
        return await database.run(lambda: database.read(lambda c: catalogue.model(c, model)))


def _page(rows: Any, limit: int, **more: Any) -> dict[str, Any]:
    """Return a page of the first `limit` rows, with the cursor of the next page (None if there is none) and the fields
    in `more`."""
    found = list(islice(rows, limit + 1))
    data = found[:limit]
    cursor = (data[-1].get("id") or data[-1]["name"]) if len(found) > limit else None
    return page_of(data, cursor, **more)


def _row_id(row: dict[str, Any]) -> str:
    return str(row["id"])


def _row_name(row: dict[str, Any]) -> str:
    return str(row["name"])
