"""Render chat messages to the model's prompt, with its own Jinja template or ChatML.

Templates come with models, so they run in an immutable sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


_TEMPLATE_DATE = date(2026, 1, 1)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


class ChatTemplate:
    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_refuse, strftime_now=_no_time)
        self._template = environment.from_string(source)
        self._tokens = dict(tokens)

    @classmethod
    def chatml(cls) -> "ChatTemplate":
        return cls(CHATML, {})

    def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool, tools: Sequence[object] | None = None
    ) -> str:
        """Return the prompt. Raise jinja2.TemplateError if the template refuses the conversation."""
        return self._template.render(
            messages=[{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=tools or None,
            documents=None,
            **self._tokens,
        )


def load_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate:
    """Return the template of a model directory: chat_template.jinja, else tokenizer_config.json, else ChatML."""
    tokens = {name: _token_text(tokenizer_config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
    file = directory / "chat_template.jinja"
    source = file.read_text() if file.is_file() else tokenizer_config.get("chat_template")
    return ChatTemplate(source if isinstance(source, str) else CHATML, tokens)


def _token_text(value: object) -> str:
    """Return a token's text; older tokenizer_config.json files write an object with the text under `content`."""
    if isinstance(value, Mapping):
        return str(value.get("content", ""))
    return str(value or "")


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> str:
    raise TemplateError(message)


def _no_time(layout: str) -> str:
    """Return a fixed date: today's date would make prompts, caches and tests differ by day."""
    return _TEMPLATE_DATE.strftime(layout)
