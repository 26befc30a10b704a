"""Chat templates are the model's code: rendered like the engine does, in a sandbox and within bounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from functions.gateway.prefix import prompt_template
from functions.gateway.prefix.prompt_template import PromptTemplate, TemplateFailed, conversation, load_template
from tests.gateway.prompt_rig import TEMPLATE

HELLO = [{"role": "user", "content": "hello"}]


def test_rendered_conversation_ends_with_the_generation_prompt() -> None:
    assert (
        PromptTemplate(TEMPLATE, {})
        .render(HELLO)
        .endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ 10 ** 9 * [0] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x' * 'y' }}",
    ],
)
def test_forbidden_or_invalid_template_fails(source: str) -> None:
    with pytest.raises(TemplateFailed):
        PromptTemplate(source, {}).render(HELLO)


def test_length_and_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = PromptTemplate(
        "{% for i in range(90000) %}{% for j in range(90000) %}xxxxxxxxxx{% endfor %}{% endfor %}", {}
    )
    monkeypatch.setattr(prompt_template, "MAX_PROMPT_CHARS", 10_000)
    with pytest.raises(TemplateFailed, match="no end"):
        endless.render(HELLO)
    monkeypatch.setattr(prompt_template, "MAX_RENDER_S", 0.0)
    with pytest.raises(TemplateFailed, match="no end"):
        PromptTemplate("{% for i in range(9) %}x{% endfor %}", {}).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}x",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% set k = j %}{% endfor %}{% endfor %}x",
        "{% set tick = none %}{% for i in range(90000) if not i %}"
        "{% for j in range(90000) %}{% for k in range(90000) recursive %}{% endfor %}{% endfor %}{% endfor %}x",
        "{% macro turn() %}{% for j in range(90000) %}{% endfor %}{% endmacro %}"
        "{% for i in range(90000) %}{% set x = turn() %}{% endfor %}x",
    ],
)
def test_loops_without_output_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_template, "MAX_RENDER_S", 0.05)
    with pytest.raises(TemplateFailed, match="no end"):
        PromptTemplate(source, {}).render(HELLO)


def test_ordinary_arithmetic_is_rendered() -> None:
    source = "{{ 2 * 3 }} {{ 2 ** 3 }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ [0] * 2 }} {{ 1.5 * 2 }}"
    assert PromptTemplate(source, {}).render(HELLO) == "6 8 abab abab [0, 0] 3.0"


def test_generation_tags_are_ignored() -> None:
    source = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}!"
    assert PromptTemplate(source, {}).render(HELLO) == "hello!"


def test_template_is_loaded_from_file_or_config(tmp_path: Path) -> None:
    assert load_template(tmp_path) is None
    config = {"chat_template": "{{ bos_token }}config", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    by_config = load_template(tmp_path)
    assert by_config is not None and by_config.render(HELLO) == "<s>config"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file")
    by_file = load_template(tmp_path)
    assert by_file is not None and by_file.render(HELLO) == "<s>file"
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="its chat template"):
        load_template(tmp_path)


def test_single_text_part_is_rendered_as_text() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert conversation({"messages": parts}) == conversation({"messages": HELLO}) == HELLO


@pytest.mark.parametrize(
    "body",
    [
        {"messages": HELLO, "tools": [{"type": "function"}]},
        {"messages": HELLO, "chat_template_kwargs": {"thinking": True}},
        {"messages": HELLO, "add_generation_prompt": False},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
        {"messages": [{"role": "user", "content": "hello", "name": "me"}]},
        {"messages": []},
    ],
)
def test_unsupported_conversations_are_not_rendered(body: dict[str, Any]) -> None:
    assert conversation(body) is None
