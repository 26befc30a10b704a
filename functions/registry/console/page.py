"""Serve the files of the console's page from `page/`.

The page needs no credential and contains no data: no names, figures or tokens. Its data needs the operator's token,
which the user types in and which stays in the tab (sessionStorage). Names of tenants and models and messages of
engines are untrusted: the page inserts them as text, never as markup, and its policy only runs its own scripts.
`runbooks.json` contains docs/how-to/runbooks by failure mode (written by `make docs`), so that an operator on call
finds the runbooks in the console itself.
"""

from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, Response

from functions.registry.errors import ApiError

PAGE_DIR = Path(__file__).parent / "page"
PAGE_FILE = "console.html"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files = {path.name: path.read_bytes() for path in sorted(PAGE_DIR.iterdir()) if path.suffix in _MEDIA_TYPES}

    @router.get("/console")
    async def console() -> Response:
        return _answer(PAGE_FILE, files[PAGE_FILE])

    @router.get("/console/{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "not_found", f"the console has no file {name[:80]!r}")
        return _answer(name, files[name])

    return router


def _answer(name: str, content: bytes) -> Response:
    media_type = _MEDIA_TYPES[Path(name).suffix]
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=dict(_HEADERS))
