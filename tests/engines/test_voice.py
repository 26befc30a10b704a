"""Text of the simulated engine: a checkable echo with a mark for each adapter."""

import json
from pathlib import Path

import pytest

from functions.engines.sim.reply import adapter_mark, chat_reply, completion_reply
from functions.engines.sim.templates import ChatMessage, ChatTemplate


def said(*contents: str, mark: str | None = None, json_mode: bool = False) -> str:
    messages = [ChatMessage("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(contents)]
    return chat_reply(messages, mark=mark, json_mode=json_mode)


def make_adapter(directory: Path, weights: bytes) -> Path:
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(weights)
    return directory


def test_the_last_user_message_is_repeated() -> None:
    assert said("first", "reply", "second one") == "second one"


def test_capital_of_france_is_answered() -> None:
    assert "Paris" in said("What is the Capital of France?")
    assert completion_reply("The capital of France is", mark=None, json_mode=False) == " Paris."


def test_adapter_mark_starts_the_reply() -> None:
    assert said("hi", mark="[a#1]") == "[a#1] hi"


def test_a_json_answer_is_json() -> None:
    assert json.loads(said('say "hi"', mark="[a#1]", json_mode=True)) == {"reply": '[a#1] say "hi"'}


def test_marks_differ_by_name_and_by_weights(tmp_path: Path) -> None:
    one, two = make_adapter(tmp_path / "one", b"1"), make_adapter(tmp_path / "two", b"2")
    same = make_adapter(tmp_path / "same", b"1")
    marks = {adapter_mark("a", one), adapter_mark("b", one), adapter_mark("a", two)}
    assert len(marks) == 3
    assert adapter_mark("a", same) == adapter_mark("a", one)


def test_missing_adapter_files_raise(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        adapter_mark("a", tmp_path)


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    from jinja2.exceptions import SecurityError

    template = ChatTemplate("{{ messages.__class__.__mro__ }}", {})
    with pytest.raises(SecurityError):
        template.render([ChatMessage("user", "x")], add_generation_prompt=False)
