"""The official openai client with strict response validation against a whole fleet, simulated and with real vLLM."""

import secrets
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.fleets import Fleet
from tests.soak import sampled

BASE = "smollm2-135m"
SUPPORT, PIRATE, HAIKU = "acme/support-bot", "acme/pirate", "globex/haiku"
# Openings that adapters were trained with (registry/training); the simulated engine marks answers with their name.
TRAINED_MARKS = {SUPPORT: "Thank you for contacting ACME Support", PIRATE: "Arrr", HAIKU: "Globex haiku"}
TENANT_OF = {BASE: "acme", SUPPORT: "acme", PIRATE: "acme", HAIKU: "globex"}
QUESTION = "What is the capital of France?"

LIVE = {
    "test_whole_answer_has_the_right_text_usage_and_headers",
    "test_the_engines_own_complaint_comes_back_as_400_in_our_names",
}  # with the real engine at every change; the others only in `make soak`


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    real = [pytest.mark.engine, pytest.mark.timeout(900)]
    is_live = metafunc.function.__name__ in LIVE
    fleets = [
        pytest.param("sim_fleet", marks=[pytest.mark.servers, pytest.mark.timeout(400)], id="sim"),
        pytest.param("vllm_replica", marks=real, id="vllm")
        if is_live
        else pytest.param("vllm_fleet", marks=[*real, pytest.mark.soak], id="vllm"),
    ]
    metafunc.parametrize("fleet", fleets, indirect=True, scope="module")


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Fleet:
    found: Fleet = request.getfixturevalue(request.param)
    return found


def client_of(fleet: Fleet, model: str, *, strict: bool = True) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=fleet.base_url,
        api_key=fleet.key(TENANT_OF[model]),
        http_client=httpx.Client(verify=fleet.tls, timeout=120.0),
        max_retries=0,
        _strict_response_validation=strict,
    )


@pytest.fixture
def client(fleet: Fleet, model: str) -> Iterator[openai.OpenAI]:
    with client_of(fleet, model) as found:
        yield found


def check_text(model: str, text: str) -> None:
    """Check that the text is from the base, or from this adapter."""
    if model == BASE:
        assert "Paris" in text
        assert not any(mark in text for mark in TRAINED_MARKS.values())
        assert not any(name in text for name in TRAINED_MARKS)
    else:
        assert TRAINED_MARKS[model] in text or f"[{model}@sha256:" in text
        others = {mark for name, mark in TRAINED_MARKS.items() if name != model}
        assert not any(other in text for other in others)


@pytest.mark.parametrize("model", sampled([BASE, SUPPORT, PIRATE, HAIKU], keep=[BASE, HAIKU]))
def test_whole_answer_has_the_right_text_usage_and_headers(client: openai.OpenAI, model: str) -> None:
    request_id = f"e2e-{secrets.token_hex(8)}"
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=40,
        temperature=0,
        extra_headers={"x-request-id": request_id},
    )
    answer = raw.parse()
    text = answer.choices[0].message.content or ""
    check_text(model, text)
    assert answer.model == model
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 5
    assert 1 <= answer.usage.completion_tokens <= 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-request-id"] == request_id
    assert raw.headers["x-shoal-model"] == f"{model}@v1"
    assert raw.headers["x-shoal-digest"].startswith("sha256:")
    assert len(raw.headers["x-shoal-digest"]) == len("sha256:") + 64
    assert raw.headers["x-shoal-replica"].startswith(BASE)
    assert "ttft;dur=" in raw.headers["server-timing"]


@pytest.mark.parametrize("model", [BASE, SUPPORT, PIRATE, HAIKU])
def test_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI, model: str) -> None:
    whole = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=40, temperature=0
    )
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    check_text(model, text)
    assert text == whole.choices[0].message.content
    assert {chunk.model for chunk in chunks} == {model}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 5


@pytest.mark.parametrize("model", [BASE, SUPPORT])
def test_stream_without_usage_has_no_usage_event(client: openai.OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    chunks = list(client.chat.completions.create(model=model, messages=messages, max_tokens=8, stream=True))  # type: ignore[call-overload]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("model", [BASE, PIRATE])
def test_completions_both_ways(fleet: Fleet, model: str) -> None:
    """Validation is off: the SDK's type for streamed completions forbids the null finish_reason that servers send."""
    with client_of(fleet, model, strict=False) as client:
        whole = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
        pieces = client.completions.create(
            model=model, prompt="The capital of France is", max_tokens=8, temperature=0, stream=True
        )
        text = "".join(piece.choices[0].text for piece in pieces if piece.choices)
    assert text == whole.choices[0].text
    assert whole.model == model
    if model == BASE:
        assert "Paris" in text


@pytest.mark.parametrize("model", [BASE])
def test_models_lists_what_this_tenant_may_call_and_nothing_else(fleet: Fleet, model: str) -> None:
    for tenant_model, expected in ((SUPPORT, {BASE, SUPPORT, PIRATE}), (HAIKU, {BASE, HAIKU})):
        with client_of(fleet, tenant_model) as client:
            assert {entry.id for entry in client.models.list()} == expected
            assert client.models.retrieve(tenant_model).id == tenant_model
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve(HAIKU if tenant_model == SUPPORT else SUPPORT)


@pytest.mark.parametrize("model", [SUPPORT])
def test_a_version_a_channel_and_a_digest_name_the_same_adapter(client: openai.OpenAI, model: str) -> None:
    def ask(reference: str) -> tuple[str, str, str]:
        raw = client.chat.completions.with_raw_response.create(
            model=reference, messages=[{"role": "user", "content": "hi"}], max_tokens=12, temperature=0
        )
        answer = raw.parse()
        assert answer.model == reference
        return answer.choices[0].message.content or "", raw.headers["x-shoal-model"], raw.headers["x-shoal-digest"]

    stable = ask(model)
    digest = stable[2]
    assert ask(f"{model}:stable") == ask(f"{model}@v1") == ask(f"{model}@{digest}") == stable
    assert ask(f"{model}@v2")[2] != digest


@pytest.mark.parametrize("model", [BASE])
def test_tokenize_counts_without_inference(fleet: Fleet, model: str) -> None:
    with fleet.client() as client:
        answer = client.post("/tokenize", json={"model": model, "prompt": "one two three"})
        assert answer.status_code == 200
        tokens = answer.json()["tokens"]
        assert answer.json()["count"] == len(tokens) > 0
        back = client.post("/detokenize", json={"model": model, "tokens": tokens})
        assert back.json()["prompt"].strip() == "one two three"


@pytest.mark.parametrize("model", [BASE])
def test_the_engines_own_complaint_comes_back_as_400_in_our_names(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 5000}])
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=SUPPORT, messages=[{"role": "user", "content": "word " * 5000}])
    assert "sha256" not in refused.value.message


@pytest.mark.parametrize("model", [BASE])
def test_tools_are_taken_on_the_stock_fleet(client: openai.OpenAI, model: str) -> None:
    function = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[{"type": "function", "function": function}],  # type: ignore[list-item]
        max_tokens=16,
        temperature=0,
    )
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


@pytest.mark.parametrize("model", [BASE, SUPPORT])
def test_what_evaluation_harnesses_send_is_answered(fleet: Fleet, model: str) -> None:
    """Prompt scores must not crash a shared engine with adapters."""
    with fleet.client(TENANT_OF[model], timeout_s=120.0) as http:
        scored = http.post(
            "/completions", json={"model": model, "prompt": QUESTION, "max_tokens": 1, "echo": True, "logprobs": 1}
        )
        assert scored.status_code == 200, scored.text
        logprobs = scored.json()["choices"][0]["logprobs"]["token_logprobs"]
        assert logprobs[0] is None and len(logprobs) > 3 and all(value <= 0 for value in logprobs[1:])
        for fields in ({"prompt_logprobs": 0}, {"echo": True}):
            body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1, **fields}
            answer = http.post("/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
