"""The registry answers every request on every route with an error of its own format, never with an internal failure."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from functions.registry.sql import audit, rollouts
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from functions.registry.sql.rollouts import Filter
from tests.registry.backends import BACKENDS
from tests.registry.catalogue_rig import Rig, catalogue, digest
from tests.registry.rig import TOKEN

NOT_OURS = {"no_store", "no_prometheus", "no_trace_store", "too_many_waiters"}  # 503s that are correct here

names = st.sampled_from(["acme", "globex", "bot", "declared", "v1", "v2", "stable", "base", "ci", "at-once", "default"])
text = st.text(max_size=20) | st.sampled_from(["", "\0", "..", "%2e", "'; DROP TABLE models; --", "𝕏", "a" * 5000])
numbers = st.integers(-(2**70), 2**70) | st.floats()
words = names | text | st.sampled_from([digest("c"), digest("d"), "ro-00000000", "lora", "s3://shoal-models/acme/x"])
scalars = st.none() | st.booleans() | numbers | words
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))
# Valid values by name of the parameter or field: enough of them that requests succeed and meet the objects of others.
FITTING: dict[str, tuple[Any, ...]] = {
    "tenant": ("acme", "acme", "globex"),
    "name": ("bot", "bot", "other", "declared"),
    "version": ("v1", "v2", "v3"),
    "channel": ("stable", "canary"),
    "digest": (digest("c"), digest("d")),
    "base_model": ("base",),
    "adapter_type": ("lora",),
    "promote_to": ("stable", "canary"),
    "rollout": ("default", "at-once", "slow"),
    "verb": ("pause", "resume", "promote", "rollback"),
    "reason": ("because",),
    "scopes": (["inference"], ["models:write", "models:read"]),
    "max_class": ("batch",),
    "id": ("ci", "cd"),
    "key_id": ("ci", "cd"),
    "expires": ("2027-06-30",),
    "limit": (1, 2, 1000),
    "dry_run": (True,),
}


def fitting(name: str, other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a valid value most of the time, otherwise any value."""
    if name not in FITTING:
        return other
    good = st.sampled_from(FITTING[name])
    return st.one_of(good, good, good, good, other)


headers = st.dictionaries(
    st.sampled_from(["if-match", "x-shoal-fence", "content-type", "x-request-id", "x-shoal-base"]),
    st.sampled_from(["", "*", '"1"', "1", "-1", "99999999999999999999", "application/json", "text/plain", "é"]),
    max_size=2,
)
bearers = st.sampled_from([TOKEN, TOKEN, TOKEN, "acme-writer", "globex-writer", "acme-reader", "acme-plain", "none"])


@pytest.fixture(scope="module", params=BACKENDS)
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Fuzzed"]:
    folder = tmp_path_factory.mktemp("fuzz")
    url = request.getfixturevalue("postgres").new_database() if request.param == "postgres" else None
    with asyncio.Runner() as runner:
        database = Database(database_url(url, folder), clock=lambda: 1000.0)
        database.prepare()
        manager = catalogue(folder, database)
        rig = runner.run(manager.__aenter__())
        runner.run(rig.rolling())  # an object that requests can hit
        yield Fuzzed(runner, rig)
        runner.run(manager.__aexit__(None, None, None))
        database.close()


class Fuzzed:
    def __init__(self, runner: asyncio.Runner, rig: Rig) -> None:
        self.runner = runner
        self.rig = rig
        self.documented: set[str] = set()  # statuses documented for the last operation
        document = self._run("GET", "/openapi.json").json()
        self.operations = [
            (method.upper(), path, operation)
            for path, methods in sorted(document["paths"].items())
            for method, operation in sorted(methods.items())
        ]

    def _run(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.rig.call(method, path, **options))

    def send(self, data: st.DataObject) -> httpx.Response:
        method, path, operation = data.draw(st.sampled_from(self.operations), label="operation")
        self.documented = set(operation["responses"])
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                value = data.draw(self._path_value(parameter["name"]), label=parameter["name"])
                path = path.replace("{" + parameter["name"] + "}", _quoted(value))
        query = {
            parameter["name"]: str(data.draw(fitting(parameter["name"], words | numbers), label=parameter["name"]))
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query" and parameter["name"] != "wait_s" and data.draw(st.integers(0, 3)) == 0
        }
        options: dict[str, Any] = {"params": query, "headers": _ascii(data.draw(headers))}
        if data.draw(st.integers(0, 4)):
            options["content"] = self._body(data, operation)
        return self._run(method, path, who=data.draw(bearers), **options)

    def _path_value(self, name: str) -> st.SearchStrategy[str]:
        if name == "rollout" and (known := self.rig.database.read(_rollout_ids)):
            return st.sampled_from(known) | words.filter(bool)
        return fitting(name, words.filter(bool))

    def _body(self, data: st.DataObject, operation: dict[str, Any]) -> bytes:
        content = operation.get("requestBody", {}).get("content", {})
        known = content.get("application/json", {}).get("schema", {}).get("properties", {})
        required = content.get("application/json", {}).get("schema", {}).get("required", [])
        chosen = [name for name in known if name in required or name == "digest" or not data.draw(st.integers(0, 3))]
        whole = st.fixed_dictionaries({name: fitting(name, values) for name in chosen})
        body = data.draw(st.one_of(whole, whole, whole, values, st.binary(max_size=50)), label="body")
        return body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")


def _rollout_ids(connection: Connection) -> list[str]:
    return [stored.rollout.id for stored in rollouts.page(connection, Filter(), None, 20)]


def _quoted(value: str) -> str:
    return "".join(f"%{byte:02x}" for byte in value.encode("utf-8", "surrogatepass"))


def _ascii(given: dict[str, str]) -> dict[str, Any]:
    return {name: value.encode("latin-1") for name, value in given.items()}


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_request_causes_an_internal_error(fuzzed: Fuzzed, data: st.DataObject) -> None:
    answer = fuzzed.send(data)
    if answer.status_code >= 500:
        assert answer.status_code == 503 and answer.json()["error"]["code"] in NOT_OURS, answer.text
    elif answer.status_code >= 400 and answer.request.method != "HEAD":
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert answer.headers["x-request-id"]
    is_routed = answer.status_code not in (404, 405) or "no such route" not in answer.text
    assert str(answer.status_code) in fuzzed.documented or not is_routed, f"undocumented: {answer.status_code}"


def test_audit_verifies_after_the_fuzzing(fuzzed: Fuzzed) -> None:
    assert fuzzed.rig.database.read(audit.verify).broken_at is None
