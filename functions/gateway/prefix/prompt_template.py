"""Chat template of a model: render a conversation to the prompt that the model reads, as the engine does.

A template is code that came with a model. It runs in jinja2's immutable sandbox on its own thread (`prompt_learner`),
and is stopped if its output gets too long or it runs too long. The check happens with each piece of output and each
loop iteration, for which a clock check is compiled into the loops. Repetition and powers are limited, because a
single one can fill the memory. Beyond that the model is trusted as in the engine: the operator chose it.

Prompts that cannot be rendered exactly give `None`: tools, pictures, templates and template arguments in the request,
and message fields other than role and content. Such requests are routed by the gateway's own record.
"""

import json
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_PROMPT_CHARS = 16 * 1024 * 1024  # four times the largest body
MAX_RENDER_S = 2.0
_MAX_TEMPLATE_BYTES = 1024 * 1024
_MAX_REPEATED = 1024 * 1024  # characters, or items
_MAX_POWER = 1024
_UNRENDERED = (
    *("tools", "functions", "documents", "chat_template", "chat_template_kwargs", "continue_final_message"),
    *("add_special_tokens", "mm_processor_kwargs", "truncate_prompt_tokens", "reasoning_effort"),
)

Message = dict[str, str]


class TemplateFailed(Exception):
    """The template rejected the conversation, or produced too much output or ran too long."""


class _Generation(Extension):
    """The tag `{% generation %}`, which marks the model's own text for training. Its content is rendered as is."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Sandbox of one template, used by one thread."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.filters["tojson"] = _tojson
        self.globals.update(raise_exception=_refuse, strftime_now=_now)
        self.until_s = 0.0  # monotonic

    def tick(self) -> None:
        if time.monotonic() > self.until_s:
            raise TemplateFailed(f"over {MAX_RENDER_S:g} s, and no end")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            fits = abs(right) <= _MAX_POWER
        else:
            sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]
            fits = all(isinstance(side, int | float) for side in (left, right)) or sizes[0] * sizes[1] <= _MAX_REPEATED
        if not fits:
            raise TemplateFailed(f"too large a result of {operator}")
        return super().call_binop(context, operator, left, right)

    def _generate(self, source: nodes.Template, *args: Any, **named: Any) -> str:
        """Insert the clock check into each loop. jinja2 calls this method between parsing and compiling."""
        for loop in source.find_all(nodes.For):
            look = nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None))
            loop.body.insert(0, look.set_lineno(loop.lineno))
        return super()._generate(source, *args, **named)


class PromptTemplate:
    """A compiled template. Raises jinja2.TemplateError if the source is not a template."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self._sandbox = _Sandbox()
        self._template = self._sandbox.from_string(source)
        self._tokens = dict(tokens)

    def render(self, messages: list[Message]) -> str:
        """Return the prompt up to where the answer begins. Raise TemplateFailed if it fails or takes too long."""
        pieces: list[str] = []
        chars, self._sandbox.until_s = 0, time.monotonic() + MAX_RENDER_S
        try:
            for piece in self._template.generate(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._tokens
            ):
                pieces.append(piece)
                chars += len(piece)
                if chars > MAX_PROMPT_CHARS:
                    raise TemplateFailed(f"{chars} characters, and no end")
                self._sandbox.tick()
        except (TemplateError, TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
            raise TemplateFailed(str(error)) from error
        return "".join(pieces)


def load_template(directory: Path) -> PromptTemplate | None:
    """Return the chat template of a model directory, or None without one. Raise OSError or ValueError if it is bad."""
    config_file, file = directory / "tokenizer_config.json", directory / "chat_template.jinja"
    config: dict[str, Any] = json.loads(config_file.read_text()) if config_file.is_file() else {}
    source = file.read_text() if file.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    if len(source) > _MAX_TEMPLATE_BYTES:
        raise ValueError(f"{directory}: a chat template of {len(source)} characters")
    tokens = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    try:
        return PromptTemplate(source, {name: text for name, text in tokens.items() if text})
    except TemplateError as error:
        raise ValueError(f"{directory}: its chat template: {error}") from error


def conversation(body: Mapping[str, Any]) -> list[Message] | None:
    """Return the messages of a chat request if its prompt consists of nothing else, or None."""
    if any(body.get(name) for name in _UNRENDERED) or body.get("add_generation_prompt") is False:
        return None
    messages: list[Message] = []
    for message in body.get("messages") or ():
        text = _text_of(message.get("content"))
        if text is None or any(value for name, value in message.items() if name not in ("role", "content")):
            return None
        messages.append({"role": message["role"], "content": text})
    return messages or None


def _text_of(content: object) -> str | None:
    """Return a content that is a text or a list of one text part, as text; None for any other content."""
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text":
        content = content[0].get("text")
    return content if isinstance(content, str) else None


def _token_text(value: object) -> str:
    """Return a special token's text, empty for null. Older config files have an object with it under `content`."""
    return str(value.get("content", "")) if isinstance(value, Mapping) else str(value or "")


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> str:
    raise TemplateError(message)


def _now(layout: str) -> str:
    """Return the local time in this strftime layout, as the engine does: some templates include the date."""
    return datetime.now().strftime(layout)  # noqa: DTZ005 - the engine's own habit is local time too
