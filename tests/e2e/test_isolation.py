"""Isolation on a whole fleet: tenants cannot reach or see each other's models, and a revoked key is soon rejected."""

import concurrent.futures
import re
import secrets

import httpx
import pytest

from tests.fleets import Fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # includes `shoal up` in the first test


def ask(client: httpx.Client, model: str, text: str, **extra: object) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **extra}
    return client.post("/chat/completions", json=body)


def check_error(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert answer.headers["x-request-id"]


def test_another_tenants_model_does_not_exist(sim_fleet: Fleet) -> None:
    with sim_fleet.client("globex") as client:
        theirs = ask(client, "acme/support-bot", "hi")
        nobodys = ask(client, "acme/no-such-model", "hi")
    check_error(theirs, 404, "model_not_found")
    check_error(nobodys, 404, "model_not_found")
    assert (
        theirs.json()["error"]["message"].replace("support-bot", "no-such-model") == nobodys.json()["error"]["message"]
    )


def test_another_tenants_digest_does_not_exist(sim_fleet: Fleet) -> None:
    with sim_fleet.client("acme") as client:
        digest = ask(client, "acme/support-bot", "hi").headers["x-shoal-digest"]
    with sim_fleet.client("globex") as client:
        check_error(ask(client, f"acme/support-bot@{digest}", "hi"), 404, "model_not_found")
        check_error(ask(client, f"globex/haiku@{digest}", "hi"), 404, "model_not_found")


def test_a_key_with_one_wrong_character_is_refused_like_an_unknown_one(sim_fleet: Fleet) -> None:
    key = sim_fleet.key("acme")
    swapped = key[:-10] + ("a" if key[-10] != "a" else "b") + key[-9:]
    answers = []
    for wrong in (swapped, "sk-1234", "-", key + "x", f"shoal_local_nobody_{'0' * 49}"):
        headers = {"authorization": f"Bearer {wrong}"}
        with httpx.Client(base_url=sim_fleet.base_url, headers=headers, verify=sim_fleet.tls, timeout=60.0) as client:
            answers.append(ask(client, "smollm2-135m", "hi"))
    for answer in answers:
        check_error(answer, 401, "invalid_api_key")
    assert len({answer.text for answer in answers}) == 1


def test_mixed_traffic_of_two_tenants_never_crosses(sim_fleet: Fleet) -> None:
    def converse(tenant: str, model: str) -> None:
        secret = f"{tenant}-{secrets.token_hex(8)}"
        with sim_fleet.client(tenant) as client:
            for stream in (False, True):
                answer = ask(client, model, secret, stream=stream)
                assert answer.status_code == 200
                found = set(re.findall(r"(?:acme|globex)-[0-9a-f]{16}", _text(answer, stream)))
                assert found == {secret}

    pairs = [
        ("acme", "acme/support-bot"),
        ("globex", "globex/haiku"),
        ("acme", "smollm2-135m"),
        ("globex", "smollm2-135m"),
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(converse, *pair) for pair in pairs * 6]:
            done.result(timeout=200)


def test_tenants_share_no_prefix_cache(sim_fleet: Fleet) -> None:
    """A repeated long prompt is cached for the same tenant but not for another one."""
    prompt = f"{secrets.token_hex(8)} " + "the same long prompt " * 100

    def cached_tokens(tenant: str) -> int:
        with sim_fleet.client(tenant) as client:
            usage = ask(client, "smollm2-135m", prompt, max_tokens=1).json()["usage"]
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    first = [cached_tokens("acme") for _ in range(6)]  # enough to reach each replica
    assert max(first) > 0
    assert cached_tokens("globex") == 0


def test_a_revoked_key_is_refused_within_seconds(sim_fleet: Fleet) -> None:
    path = "policies/tenants.yaml"
    before = sim_fleet.read(path)
    with sim_fleet.client("globex") as client, sim_fleet.client("acme") as other:
        assert ask(client, "smollm2-135m", "hi").status_code == 200
        try:
            pushed = sim_fleet.push({path: _without_keys_of(before, "globex")}, "revoke globex's key")
            assert pushed.returncode == 0, pushed.stderr
            seconds = wait_until(
                "the key is refused", lambda: ask(client, "smollm2-135m", "hi").status_code == 401, timeout_s=10
            )
            check_error(ask(client, "smollm2-135m", "hi"), 401, "invalid_api_key")
            assert ask(other, "smollm2-135m", "hi").status_code == 200
        finally:
            assert sim_fleet.push({path: before}, "give it back").returncode == 0
        wait_until("the key works again", lambda: ask(client, "smollm2-135m", "hi").status_code == 200, timeout_s=60)
    wait_until("all is as it was", sim_fleet.is_applied, 120)
    print(f"revoked key refused {seconds:.1f} s after the push returned")


def _without_keys_of(yaml_text: str, tenant: str) -> str:
    """Return the policies' YAML without the tenant's keys."""
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML()
    documents = list(yaml.load_all(yaml_text))
    for document in documents:
        if document and document.get("kind") == "Tenant" and document["metadata"]["name"] == tenant:
            document["spec"]["keys"] = []
    out = StringIO()
    yaml.dump_all(documents, out)
    return out.getvalue()


def _text(answer: httpx.Response, stream: bool) -> str:
    if not stream:
        return str(answer.json()["choices"][0]["message"]["content"])
    import json

    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)
