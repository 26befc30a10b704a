"""Call of a declared tool: one POST to a checked address, within the tool's time and size limits.

The host is resolved here. Each of its addresses must be in the public internet, or in a network that the operator
named. The connection uses one of exactly these addresses, while TLS verifies the host's name, so a name that later
resolves differently gains nothing. Redirects are not followed and proxies of the environment not used. Of the
caller's request only the model's arguments are sent. Every failure is reported to the model as a sentence.

Names are resolved on threads, with a limit for each tenant: a dead name server holds a thread as long as the system's
resolver waits, regardless of the tool's timeout. So a slot is released only when its thread ends, and one tenant's
dead name servers do not affect the other tenants' slots or the loop's own threads.

Neighbours: `declared` selects the tools; `functions.artifacts.ingest.addresses` knows the public internet.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from functions.api.snapshot import ToolEntry
from functions.artifacts.errors import ArtifactRefused, StoreUnavailable
from functions.artifacts.ingest.addresses import Address, Resolver, resolve, system_resolver
from functions.gateway.chat.tools.declared import ToolCall
from functions.gateway.tenant_limits import TenantSlots

MAX_THREADS = 16
MAX_OF_TENANT = 4

Found = TypeVar("Found")


class TenantThreads:
    """Threads for blocking work, limited for each tenant. Owned by one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="tools")  # starts threads on demand
        self._slots = TenantSlots(MAX_OF_TENANT)

    async def run(self, tenant: str, function: Callable[[], Found]) -> Found:
        """Run the function in a thread once the tenant has a slot, and return its result.

        If the caller is cancelled, the slot stays taken until the function ends.
        """
        loop = asyncio.get_running_loop()
        await self._slots.enter(tenant)
        job: Future[Found] = self._threads.submit(function)

        def ended(_: "Future[Found]") -> None:
            with suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(self._slots.leave, tenant)

        job.add_done_callback(ended)
        return await asyncio.wrap_future(job)


_log = logging.getLogger(__name__)
_MAX_AT_ONCE = 64  # on this gateway; further calls wait, within their own timeout
_MAX_AT_ONCE_OF_TENANT = 16  # so that one tenant's slow tools do not use all slots
_HTTPS_PORT = 443
_SECRET_MAX_BYTES = 8 * 1024


ToolOutcome = Literal["answered", "not_made", "late", "address_refused", "unreachable", "status", "too_large"]


class ToolAnswer(NamedTuple):
    """The tool's answer or an error sentence, as text for the model, and the outcome."""

    content: str
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """The operator's limits for tool calls."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()  # private networks that tools may be in
    ca_file: Path | None = None  # used instead of the system's authorities
    secrets_dir: Path | None = None  # one file per secret: `<tenant>/<name>` or `<tenant>.<name>`


class ToolCaller:
    """Calls tools within the operator's policy. Owned by one event loop."""

    def __init__(self, policy: ToolPolicy, resolver: Resolver = system_resolver) -> None:
        self._policy = policy
        self._resolver = resolver
        self._tls = ssl.create_default_context(cafile=str(policy.ca_file) if policy.ca_file else None)
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._threads = TenantThreads()
        self._slots = TenantSlots(_MAX_AT_ONCE_OF_TENANT)

    async def call(self, tenant: str, tool: ToolEntry, call: ToolCall) -> ToolAnswer:
        if call.problem:
            return ToolAnswer(call.problem, "not_made")
        try:
            async with asyncio.timeout(tool.timeout_s), self._slots.reserved(tenant), self._places:
                return await self._post(tenant, tool, call.arguments)
        except TimeoutError:
            return ToolAnswer(f"The tool took over {tool.timeout_s:g} s.", "late")
        except (ArtifactRefused, StoreUnavailable) as error:
            _log.warning("tool %s of %s was not called: %s", tool.name, tenant, error)
            return ToolAnswer("The tool's address cannot be used.", "address_refused")
        except (httpx.HTTPError, OSError, ValueError) as error:
            _log.warning("tool %s of %s failed: %s", tool.name, tenant, type(error).__name__)
            return ToolAnswer("The tool could not be reached.", "unreachable")

    async def _post(self, tenant: str, tool: ToolEntry, arguments: bytes) -> ToolAnswer:
        parts = urlsplit(tool.url)
        host, port = parts.hostname or "", parts.port or _HTTPS_PORT
        threads = self._threads
        addresses = await threads.run(tenant, lambda: resolve(host, port, self._resolver, self._policy.networks))
        headers = {"host": parts.netloc, "content-type": "application/json", "accept-encoding": "identity"}
        secret = tool.secret
        token = await threads.run(tenant, lambda: self._secret(tenant, secret)) if secret else ""
        if token:
            headers["authorization"] = f"Bearer {token}"
        url = httpx.URL(tool.url).copy_with(host=_literal(addresses[0]))
        timeout = httpx.Timeout(tool.timeout_s)
        async with (
            httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=timeout) as client,
            client.stream("POST", url, content=arguments, headers=headers, extensions={"sni_hostname": host}) as answer,
        ):
            return await _read(answer, tool.max_bytes)

    def _secret(self, tenant: str, name: str) -> str:
        folder = self._policy.secrets_dir
        if folder is None:
            raise ValueError("no folder of tool secrets is configured")
        with secret_file(folder, tenant, name).open() as file:
            return file.read(_SECRET_MAX_BYTES).strip()


def secret_file(folder: Path, tenant: str, name: str) -> Path:
    """Return the path of the secret's file, which may not exist. Neither name has a slash or is only dots.

    A mounted Kubernetes Secret has `<tenant>.<name>` instead of folders; it is unambiguous if the name has no dot.
    """
    flat = folder / f"{tenant}.{name}"
    return flat if "." not in name and flat.is_file() else folder / tenant / name


async def _read(answer: httpx.Response, max_bytes: int) -> ToolAnswer:
    if not 200 <= answer.status_code < 300:
        return ToolAnswer(f"The tool answered with status {answer.status_code}.", "status")
    content = bytearray()
    async for block in answer.aiter_raw(16 * 1024):
        content += block
        if len(content) > max_bytes:
            return ToolAnswer(f"The tool's answer is over {max_bytes} bytes.", "too_large")
    return ToolAnswer(content.decode(errors="replace"), "answered")


def _literal(address: Address) -> str:
    return str(address)
