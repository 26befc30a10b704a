"""Client of the registry: HTTPS with the fleet's certificate authority. Refusals carry the registry's message.

On the fleet's machine a command sends the installation's token, which permits everything. It also does so for a cluster
that SHOAL_CLI_CONTEXT names, through the API server. Elsewhere, or to act as a tenant, SHOAL_CLI_KEY holds a key with
`models:read` or `models:write`, and SHOAL_CLI_REGISTRY_URL the address of the registry or a gateway.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, TYPE_CHECKING, Any

import httpx
from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.api.ids import ModelId
from functions.cli.context import CliContext
from functions.cli.refused import CommandRefused
from functions.fleet.role_credentials import CredentialsUnusable, tokens_in

if TYPE_CHECKING:
    from functions.cli.cluster.tunnel import RegistryTunnel

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
UPLOAD_TIMEOUT_S = 600.0  # the registry answers after it has checked the upload and hashed it again
PAGE_ROWS = 1000
MAX_PAGES = 100  # 100,000 rows: longer listings are not useful
_HTTP_ERRORS_FROM = 400


class RegistryAccess(BaseSettings):
    """Settings from the environment, prefix `SHOAL_CLI_`."""

    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CLI_", frozen=True, extra="ignore", env_ignore_empty=True, use_attribute_docstrings=True
    )

    registry_url: str | None = None
    """Address of the registry, or of a gateway, which forwards calls of tenants. Default: the local fleet's."""

    key: SecretStr | None = None
    """Tenant's key to send instead of the installation's token. Default: the token, if its file can be read."""

    context: str | None = None
    """Kubeconfig context (- for the current one) of the cluster whose registry to use, through the API server and with
    the installation's token. Default: the local fleet."""

    namespace: str = "shoal"
    """Namespace of the installation on that cluster."""

    ca_file: Path | None = None
    """File with the certificate authority of the registry. Default: the local fleet's own, else the system's."""


class RegistryRefusal(CommandRefused):
    """The registry refused a request. The message is the registry's."""

    def __init__(self, status: int, code: str | None, message: str, param: str | None = None) -> None:
        super().__init__(f"{message} (HTTP {status}{f', {code}' if code else ''})")
        self.status = status
        self.code = code
        self.param = param  # subject of the error, for some codes


class RegistryUnreachable(CommandRefused):
    """The registry does not answer: it is down, or the address is wrong. A retry may succeed."""


@dataclass(slots=True)
class Registry:
    context: CliContext
    bearer: str = field(init=False, repr=False)
    tls: ssl.SSLContext = field(init=False)
    _client: httpx.Client = field(init=False)
    _tunnel: "RegistryTunnel | None" = field(init=False)

    def __post_init__(self) -> None:
        access = _access()
        tunnel = self._tunnel = _tunnel(access)
        self.bearer = tunnel.token if tunnel is not None and tunnel.token else _bearer(self.context, access)
        self.tls = _authority(self.context, access)
        self._client = httpx.Client(
            base_url=tunnel.url if tunnel is not None else access.registry_url or self.context.registry_url,
            headers={"authorization": f"Bearer {self.bearer}"},
            verify=self.tls,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._client.close()
        if self._tunnel is not None:
            self._tunnel.close()

    @property
    def url(self) -> str:
        return str(self._client.base_url).rstrip("/")

    @property
    def is_local(self) -> bool:
        """True if this is the registry of the local fleet."""
        return self._client.base_url == httpx.URL(self.context.registry_url)

    def get(self, path: str, **params: str | int) -> Any:
        return self._request_json("GET", path, params=params)

    def content(self, path: str, **params: str | int) -> bytes | None:
        """Return the answer's raw content; None for 204, before anything exists."""
        response = self._request("GET", path, params=params)
        return None if response.status_code == httpx.codes.NO_CONTENT else response.content

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._request_json(method, path, json=dict(body) if body is not None else None)

    def model(self, model_id: ModelId) -> dict[str, Any] | None:
        """Return a model's pool, versions, channels in force, snapshot epoch and git file; None if it does not exist.

        `declared_in` is "" if no file declares the model. `channels_in_force` is None at an older registry. Gateways
        forward this route; their own route for a model returns OpenAI's description.
        """
        path, versions, after = f"/v1/models/{model_id}/versions", [], ""
        for _ in range(MAX_PAGES):
            try:
                page = self.get(path, limit=PAGE_ROWS, **({"after": after} if after else {}))
            except RegistryRefusal as error:
                if error.status == 404:
                    return None
                raise
            versions += page["data"]
            after = page["next_after"] or ""
            if not after:
                break
        known = {name: page.get(name) for name in ("pool", "declared_in", "channels_in_force", "snapshot_epoch")}
        return known | {"versions": versions}

    def base_models(self) -> list[str]:
        """Return the ids of base models, from a registry or a gateway; empty if the key may not list them."""
        try:
            page = self.get("/v1/models", limit=PAGE_ROWS)
        except RegistryRefusal as error:
            if error.status == 403:
                return []
            raise
        if "next_after" not in page:  # a gateway's listing has only one page
            return sorted(str(each["id"]) for each in page["data"] if each.get("parent") is None)
        return sorted(str(each["id"]) for each in self.pages("/v1/models") if each["type"] == "base")

    def pages(
        self, path: str, params: Mapping[str, str] = MappingProxyType({}), page_rows: int = PAGE_ROWS
    ) -> Iterator[dict[str, Any]]:
        """Yield every row of a listing, page by page. Fail if the answer has no pages, as of an older release."""
        after: str | int | None = None
        for _ in range(MAX_PAGES):
            page = self.get(path, limit=page_rows, **params, **({"after": after} if after is not None else {}))
            if "next_after" not in page:  # treating this as the last page would hide rows
                raise CommandRefused(f"{self._client.base_url}{path} does not return pages: is it an older release?")
            yield from page["data"]
            after = page["next_after"]
            if after is None:
                return

    def upload(
        self, path: str, files: Sequence[tuple[str, Path]], fields: Mapping[str, str], moved: Callable[[int], None]
    ) -> Any:
        """Send files as a multipart body and return the registry's answer. Call `moved` with the number of bytes of
        each part that is read."""
        opened = [(name, _Counted(file.open("rb"), moved)) for name, file in files]
        timeout = httpx.Timeout(UPLOAD_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            parts = [("file", (name, reader, "application/octet-stream")) for name, reader in opened]
            return self._request_json("POST", path, data=dict(fields), files=parts, timeout=timeout)
        finally:
            for _, reader in opened:
                reader.close()

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise RegistryUnreachable(
                f"no answer from the registry at {self._client.base_url}: {why}; see `shoal status`"
            ) from error
        if response.status_code >= _HTTP_ERRORS_FROM:
            raise _refusal(response)
        return response

    def _request_json(self, method: str, path: str, **options: Any) -> Any:
        response = self._request(method, path, **options)
        if response.status_code == httpx.codes.NO_CONTENT or not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise CommandRefused(
                f"{self._client.base_url} does not answer like a registry: {response.text[:200]!r}"
            ) from error


class _Counted:
    """A file that reports how many bytes were read. httpx needs its descriptor to find its length."""

    def __init__(self, file: IO[bytes], moved: Callable[[int], None]) -> None:
        self._file = file
        self._moved = moved

    def read(self, size_bytes: int = -1) -> bytes:
        part = self._file.read(size_bytes)
        self._moved(len(part))
        return part

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def _access() -> RegistryAccess:
    try:
        return RegistryAccess()
    except ValidationError as error:
        wrong = "; ".join(f"SHOAL_CLI_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
        raise CommandRefused(f"a setting in the environment is wrong: {wrong}") from error


def _tunnel(access: RegistryAccess) -> "RegistryTunnel | None":
    if access.context is None or access.registry_url is not None:
        return None
    from functions.cli.cluster.access import ClusterChoice
    from functions.cli.cluster.tunnel import RegistryTunnel

    return RegistryTunnel(ClusterChoice(access.context, access.namespace), with_token=access.key is None)


def _bearer(context: CliContext, access: RegistryAccess) -> str:
    if access.key is not None:
        return access.key.get_secret_value()
    if access.registry_url is not None:  # never send this fleet's token to another registry
        raise CommandRefused("SHOAL_CLI_REGISTRY_URL needs SHOAL_CLI_KEY: a key with the scope models:write")
    file = context.layout.secret("internal-token")
    try:
        return tokens_in(file.read_text())[0]
    except CredentialsUnusable as error:
        raise CommandRefused(f"{file}: {error}") from error
    except FileNotFoundError as error:
        words = "start one with `shoal up`, or set SHOAL_CLI_REGISTRY_URL and SHOAL_CLI_KEY"
        raise CommandRefused(f"there is no fleet in {context.layout.root}: {words}") from error
    except OSError as error:
        raise CommandRefused(
            f"{file} cannot be read: {error.strerror}; to act as a tenant, set SHOAL_CLI_KEY"
        ) from error


def _authority(context: CliContext, access: RegistryAccess) -> ssl.SSLContext:
    file = access.ca_file or (context.layout.ca_file if context.layout.ca_file.is_file() else None)
    try:
        return ssl.create_default_context(cafile=str(file) if file is not None else None)
    except (OSError, ssl.SSLError) as error:
        raise CommandRefused(f"the certificate authority in {file} cannot be used: {error}") from error


def _refusal(response: httpx.Response) -> RegistryRefusal:
    try:
        error = response.json()["error"]
        return RegistryRefusal(response.status_code, error.get("code"), str(error["message"]), error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return RegistryRefusal(response.status_code, None, response.text[:300] or "no reason given")
