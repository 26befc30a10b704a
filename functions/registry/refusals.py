"""The one edge where refusals of the database and of the artifact store become answers."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from functions.artifacts.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMissing,
    ArtifactRefused,
    CacheFailed,
    StoreUnavailable,
    VersionTaken,
)
from functions.registry.errors import error_body
from functions.registry.sql.failures import DatabaseUnavailable
from functions.registry.sql.refusals import Kind, Refused

_STATUS: dict[Kind, int] = {
    "missing": 404,
    "conflict": 409,
    "outdated": 409,
    "precondition": 412,
    "limit": 409,
    "invalid": 400,
}
_RETRY_AFTER = {"retry-after": "5"}

# By what the caller does: send something else, wait, or choose another name.
_ARTIFACTS: dict[type[ArtifactError], tuple[int, str]] = {
    ArtifactRefused: (422, "artifact_refused"),
    ArtifactCorrupt: (422, "artifact_corrupt"),
    ArtifactMissing: (404, "artifact_not_found"),
    VersionTaken: (409, "version_taken"),
    StoreUnavailable: (503, "store_unavailable"),
    CacheFailed: (503, "staging_failed"),
}


def install(app: FastAPI) -> None:
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(DatabaseUnavailable, _database)
    app.add_exception_handler(ArtifactError, _artifact)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    status = _STATUS[error.kind]
    body = error_body(status, error.code, error.message, error.subject)
    if error.code == "rollout_active":
        body["rollout"] = error.subject  # for programs: which one to watch, or to take back
    return JSONResponse(body, status)


async def _database(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_body(503, "database_unavailable", str(error)), 503, headers=_RETRY_AFTER)


async def _artifact(_: Request, error: Exception) -> JSONResponse:
    status, code = next((known for type_, known in _ARTIFACTS.items() if isinstance(error, type_)), (500, "artifact"))
    headers = _RETRY_AFTER if status == 503 else None
    return JSONResponse(error_body(status, code, str(error)), status, headers=headers)
