"""Errors of the catalogue and its database, named by what the caller has to do.

CatalogueRefused has a kind that the HTTP layer maps to a status, and a message that says what to do. SQLAlchemy's
exceptions are mapped here.
"""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

_RETRIED_STATES = ("40001", "40P01")  # serialisation failure, deadlock: the other transaction won
_HINTS = (
    ("database is locked", "another process holds the SQLite file; if that lasts, find out which one has it open"),
    ("disk is full", "the disk under the registry's database is full; free space"),
    ("readonly database", "the registry's database cannot be written; check the file's rights and its disk"),
    ("not a database", "the registry's database file is damaged; restore a backup (docs/how-to/backup.md)"),
    ("malformed", "the registry's database file is damaged; restore a backup (docs/how-to/backup.md)"),
    ("unable to open", "the registry's database file cannot be opened; check its folder and rights"),
    ("disk i/o error", "the disk under the registry's database failed; check it"),
    ("lock timeout", "another write holds the database; try again"),
)


class DatabaseUnavailable(Exception):
    """The database cannot answer now; try again. Nothing has changed, unless the text says that this is unknown."""


class SchemaUnknown(DatabaseUnavailable):
    """A newer shoal made the database: run that version, or restore a backup."""


class Contended(Exception):
    """The transaction lost a conflict with another one and can be retried immediately."""


def map_error(error: SQLAlchemyError) -> Exception:
    """Return Contended for a conflict that can be retried immediately, and DatabaseUnavailable for any other database
    error."""
    original = error.orig if isinstance(error, DBAPIError) else None
    if getattr(original, "sqlstate", None) in _RETRIED_STATES:
        return Contended(str(original))
    return DatabaseUnavailable(explain_error(error))


def explain_error(error: SQLAlchemyError) -> str:
    """Describe the error for people, without the statement and its values, which may be secret."""
    if isinstance(error, PoolTimeout):
        return "all of the registry's database connections are busy; try again"
    original = error.orig if isinstance(error, DBAPIError) else error
    said = " ".join(str(original).split())
    for sign, hint in _HINTS:
        if sign in said.lower():
            return hint
    return f"the registry's database cannot be used: {said[:300]}"


Kind = Literal["missing", "conflict", "outdated", "precondition", "limit", "invalid"]


@dataclass(eq=False)
class CatalogueRefused(Exception):
    """A rejected change; nothing has changed. `code` is for programs, `message` for people, `subject` is the cause."""

    kind: Kind
    code: str
    message: str
    subject: str | None = None

    def __str__(self) -> str:
        return self.message
