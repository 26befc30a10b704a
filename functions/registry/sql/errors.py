"""Errors of the catalogue: what it refuses, whoever calls, and what its database can do, named by what the caller does.

A refusal has a kind that the edge turns into a status, and a message that says what to do. SQLAlchemy's exceptions end
here.
"""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

_RETRIED_STATES = ("40001", "40P01")  # serialisation failure, deadlock: the other one went first
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
    """The database cannot answer now; nothing has changed unless the text says that this is unknown. Try again."""


class SchemaUnknown(DatabaseUnavailable):
    """The database was made by a later shoal: run that one, or restore a backup."""


class Contended(Exception):
    """The transaction lost against another one; it can be run again at once."""


def mapped(error: SQLAlchemyError) -> Exception:
    """The one of ours that says what to do."""
    original = error.orig if isinstance(error, DBAPIError) else None
    if getattr(original, "sqlstate", None) in _RETRIED_STATES:
        return Contended(str(original))
    return DatabaseUnavailable(words(error))


def words(error: SQLAlchemyError) -> str:
    """What is wrong, without the statement and its values: they may hold what a log must not."""
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
class Refused(Exception):
    """Nothing has changed. `code` is for programs, `message` for people; `subject` is what stands in the way."""

    kind: Kind
    code: str
    message: str
    subject: str | None = None

    def __str__(self) -> str:
        return self.message
