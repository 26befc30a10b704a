"""References to images, sounds and files in a request, which an engine would fetch from inside the network.

`data:` URLs contain their bytes and count against the body. Engines fetch other URLs. A host name of a tenant may
resolve to any address by then: the gateway cannot check, because the hot path waits for no resolver and the engine
resolves again. So `https:` URLs are accepted only for hosts that the operator names (`Limits.media_hosts`, none by
default). Addresses outside the public internet, and names that only resolve inside, are rejected even then. Engines
are started so that they follow no redirect (VLLM_MEDIA_URL_ALLOW_REDIRECTS).

A part may also have an id of its caller's (`uuid`). An engine caches a processed picture under that id, and looks it
up before it reads the picture; a prefix cache's salt does not separate these caches. An unchanged id would let one
tenant see another's picture with the same id, or with the hash that identifies a picture without an id, and let it
replace that picture. So

    engine's id = HMAC(pepper, tenant, caller's id)     also for tenants that share a prefix cache: that is verified by
                                                        its content, these caches are not

and a part with only an id is rejected: the next request may be sent to a replica that has never seen the picture.

Neighbours: `content` calls this for every content part, `intake` for the ids once the caller is known;
`functions.artifacts.ingest.addresses` knows the public internet.
"""

import hashlib
import hmac
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from functions.api.ids import TenantId
from functions.artifacts.ingest.addresses import is_allowed
from functions.gateway.errors import bad_request
from functions.gateway.intake.json_body import JsonObject

_POINTERS = ("image_url", "audio_url", "video_url", "file_url", "source", "url", "image", "audio", "video", "file")
_MEDIA = frozenset((*_POINTERS, "input_image", "input_file", "document", "uuid"))
# Fields in which engines look up the media of an id, in this order; the first one present counts, even if it is null.
_NAMED_BY_ID = (
    *("image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"),
    *("audio_url", "input_audio", "video_url"),
)
_ID_MAX_CHARS = 256
_HEX_DIGITS = 32
# Fields that may have content parts.
_WITH_PARTS = frozenset(
    (
        *("messages", "input", "system", "query", "queries", "text_1", "data_1"),
        *("documents", "items", "text_2", "data_2"),
    )
)
_INSIDE = (".local", ".internal", ".localhost", ".svc", ".cluster.local", ".home.arpa", ".lan")
_URL_MAX_CHARS = 2_048
_DATA_MAX_CHARS = 3 * 1024 * 1024  # 2.25 MB of image: three quarters of a body's limit


def media_problem(part: dict[str, Any]) -> str | None:
    """Return what is wrong with a content part's type, media id or URLs, or None. A text part costs one set lookup."""
    kind = part.get("type")
    if type(kind) is not str and kind is not None:
        return "the type of a part must be a string"
    if kind not in _MEDIA and _MEDIA.isdisjoint(part):
        return None
    if part.get("uuid") is not None:
        problem = _id_problem(part)
        if problem is not None:
            return problem
    for name in _POINTERS:
        value = part.get(name)
        url = value.get("url") if type(value) is dict else value
        problem = url_problem(url) if url is not None else None
        if problem is not None:
            return f"{name} {problem}"
    return None


def _id_problem(part: dict[str, Any]) -> str | None:
    uuid = part["uuid"]
    if type(uuid) is not str or not 1 <= len(uuid) <= _ID_MAX_CHARS:
        return f"uuid must be a string of 1 to {_ID_MAX_CHARS} characters"
    named = [part[name] for name in _NAMED_BY_ID if name in part]
    if not named or not all(map(_is_there, named)):
        return "a uuid must be sent with its media: replicas do not share the media that they have seen"
    return None


def _is_there(media: Any) -> bool:
    inner = media.get("url", media) if type(media) is dict else media
    return bool(inner)


def url_problem(url: Any) -> str | None:
    """Return what is wrong with a URL that an engine would fetch, or None; only data: and public https: are allowed."""
    if type(url) is not str:
        return "must have a url that is a string"
    if url[:5].lower() == "data:":
        return None if len(url) <= _DATA_MAX_CHARS else f"is over {_DATA_MAX_CHARS} characters"
    if len(url) > _URL_MAX_CHARS or not url.isascii() or not url.isprintable():
        return f"must be a printable URL of at most {_URL_MAX_CHARS} characters"
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return "is not a URL"
    # Some parsers decode a `%` in a host: 127.0.0.%31.
    if parts.scheme != "https" or not host or "@" in parts.netloc or "%" in parts.netloc or "\\" in url:
        return "must be an https: or data: URL, without user name or % in its host"
    return None if _is_outside(host) else "points at an address outside the public internet"


def _is_outside(host: str) -> bool:
    if "." not in host and ":" not in host:  # localhost, a service's short name, or an address as one number
        return False
    try:
        return is_allowed(ip_address(host))
    except ValueError:
        last = host.rsplit(".", 1)[-1]
        looks_numeric = last.isdigit() or last.startswith("0x")  # many resolvers read 127.1 and 0x7f.1 as addresses
        return not looks_numeric and not host.endswith(_INSIDE)


def host_problem(part: dict[str, Any], hosts: frozenset[str]) -> str | None:
    """Return an error if the host of a part's https: URL is not one of `hosts`, or None. URLs were checked before."""
    for name in _POINTERS:
        value = part.get(name)
        url = value.get("url") if type(value) is dict else value
        if type(url) is not str or url[:6].lower() != "https:":
            continue
        try:
            host = (urlsplit(url).hostname or "").rstrip(".")
        except ValueError:
            host = "nowhere"
        if host not in hosts:
            return f"{name} points at {host}, which is not an allowed host: send the content as a data: URL"
    return None


def admit_media(body: JsonObject, pepper: bytes, tenant: TenantId, hosts: frozenset[str]) -> None:
    """Replace each media id in a checked body, at every depth, by one that is keyed to the tenant.

    Raises RequestRejected (400) if a part refers to a host that is not among `hosts`.
    """
    for part in _parts(body):
        if _MEDIA.isdisjoint(part):
            continue
        problem = host_problem(part, hosts)
        if problem is not None:
            raise bad_request(f"{problem}.", code="media_host_not_allowed")
        if "uuid" in part:
            part["uuid"] = _keyed(part["uuid"], pepper, tenant)


def _parts(body: JsonObject) -> list[dict[str, Any]]:
    """Return all objects of a body that may refer to media: messages, items, documents and all parts in them."""
    within: list[Any] = []
    parts: list[dict[str, Any]] = []
    for name, value in body.items():
        if name not in _WITH_PARTS:
            continue
        if type(value) is dict:
            within.append(value)
        elif type(value) is list and value and type(value[0]) is not int:  # token ids, which may be many
            within += value
    for part in within:  # the list grows during the loop
        if type(part) is not dict:
            continue
        parts.append(part)
        if "source" in part and type(part["source"]) is dict and type(part["source"].get("content")) is list:
            within += part["source"]["content"]
        if type(part.get("content")) is list:
            within += part["content"]
        if "output" in part and type(part["output"]) is list:
            within += part["output"]
    return parts


def _keyed(uuid: Any, pepper: bytes, tenant: TenantId) -> str | None:
    if type(uuid) is not str:  # not in a content part, so no engine reads it
        return None
    named = b"\0".join((b"media-id", tenant.encode(), uuid.encode()))
    return hmac.digest(pepper, named, hashlib.sha256).hex()[:_HEX_DIGITS]
