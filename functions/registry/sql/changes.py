"""Change feed: everything that the controller compiles, in pages that contain each write completely or not at all.

A page holds up to `PAGE_ROWS` rows (a model counts with its versions). A write that alone exceeds this is a page of
its own. A reader at `change` N has read all writes up to N and requests those above. After a restore from a backup,
`change` is below the reader's; another database has another `lineage`.

Worked example (test_page_never_splits_a_write): writes 4 and 5 touch two rows each; a page of three ends at 4.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, func, literal, select, union_all

from functions.registry.sql import api_keys, catalogue, rollouts
from functions.registry.sql.api_keys import StoredKey
from functions.registry.sql.catalogue import StoredModel
from functions.registry.sql.rollouts import StoredRollout
from functions.registry.sql.tables import api_keys as keys_table
from functions.registry.sql.tables import models, state, versions
from functions.registry.sql.tables import rollouts as rollouts_table

PAGE_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Changes:
    lineage: str
    change: int  # last change of this page
    more: bool
    models: tuple[StoredModel, ...]
    keys: tuple[StoredKey, ...]
    rollouts: tuple[StoredRollout, ...]


def position(connection: Connection) -> tuple[str, int]:
    """Return the database's lineage and the number of its last write."""
    lineage, change = connection.execute(select(state.c.lineage, state.c.change)).one()
    return str(lineage), int(change)


def changes_after(connection: Connection, after: int, page_rows: int = PAGE_ROWS) -> Changes:
    # read first: writes committed during this read have higher numbers and come later
    lineage, last = position(connection)
    horizon = _horizon(connection, after, last, page_rows)
    weights = _weights(connection, after, horizon)
    upto = _cut(weights, page_rows)
    if upto is None:
        return Changes(lineage, last, False, (), (), ())
    more = upto < weights[-1][0] or horizon < last
    return Changes(
        lineage=lineage,
        change=upto if more else last,
        more=more,
        models=tuple(catalogue.models_changed(connection, after, upto)),
        keys=tuple(api_keys.keys_changed(connection, after, upto)),
        rollouts=tuple(rollouts.rollouts_changed(connection, after, upto)),
    )


def _horizon(connection: Connection, after: int, last: int, page_rows: int) -> int:
    """Return the number of a write at or after the end of the page of `page_rows` rows. Rows behind it need not be
    counted."""
    beyond = [
        connection.scalar(
            select(table.c.change)
            .where(table.c.change > after, table.c.change <= last)
            .order_by(table.c.change)
            .offset(page_rows)
            .limit(1)
        )
        for table in (models, keys_table, rollouts_table)
    ]
    return min((int(change) for change in beyond if change is not None), default=last)


def _weights(connection: Connection, after: int, last: int) -> list[tuple[int, int]]:
    """Return the numbers of the writes above `after` and up to `last`, in order, each with its number of rows."""
    within = (models.c.change > after, models.c.change <= last)
    its_versions = select(func.count()).select_from(versions).where(versions.c.model == models.c.id).scalar_subquery()
    touched = union_all(
        select(models.c.change, (1 + its_versions).label("weight")).where(*within),
        *(
            select(table.c.change, literal(1).label("weight")).where(table.c.change > after, table.c.change <= last)
            for table in (keys_table, rollouts_table)
        ),
    ).subquery()
    query = select(touched.c.change, func.sum(touched.c.weight)).group_by(touched.c.change).order_by(touched.c.change)
    return [(int(change), int(weight)) for change, weight in connection.execute(query)]


def _cut(weights: list[tuple[int, int]], page_rows: int) -> int | None:
    """Return the number of the last write that fits in the page (the first one always does), or None if there is
    none."""
    taken = 0
    upto = None
    for change, weight in weights:
        taken += weight
        if upto is not None and taken > page_rows:
            break
        upto = change
    return upto
