"""Translate a valid body into work for the engine: prompts as tokens, planned replies and the cache scope.

Checks run in vLLM's order: model, tool choice, output length against the context, prompt length, then sampling.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import TemplateError

from functions.engines.sim import reply as plan
from functions.engines.sim.blocks import CacheScope
from functions.engines.sim.kv_transfer import NOTHING_RECEIVED, Received
from functions.engines.sim.model import Adapter, AdapterTable, SimulatedModel
from functions.engines.sim.protocol import ChatBody, CompletionBody, GenerationBody, Message, check_sampling
from functions.engines.sim.refusals import invalid, unknown_model
from functions.engines.sim.reply import Ending, ReplyPlan, plan_reply
from functions.engines.sim.templates import ChatMessage

_PRIORITY_HEADER = "x-vllm-priority"


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class ReplyChoice:
    """One reply to generate: the response's `choices[index]`."""

    index: int
    prompt: Prompt
    plan: ReplyPlan


@dataclass(frozen=True, slots=True)
class Work:
    model: str
    adapter: Adapter | None
    scope: CacheScope
    priority: int
    max_tokens: int
    n: int
    prompts: tuple[Prompt, ...]
    choices: tuple[ReplyChoice, ...]
    received: Received = NOTHING_RECEIVED  # KV blocks of the prompt received from another engine
    hold_as: str = ""  # name under which the computed blocks are held for another engine; empty: they are not held

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)


class Acceptor:
    def __init__(
        self, model: SimulatedModel, adapters: AdapterTable, *, max_model_len_tokens: int, can_call_tools: bool
    ) -> None:
        self._model = model
        self._adapters = adapters
        self._max_model_len_tokens = max_model_len_tokens
        self._can_call_tools = can_call_tools

    def find_model(self, name: str | None) -> Adapter | None:
        """Return the adapter of that name; None for no name or a name of the base model. Raise EngineRefusal for any
        other."""
        if not name or name in self._model.names:
            return None
        adapter = self._adapters.get(name)
        if adapter is None:
            raise unknown_model(name, aliases=self._model.names)
        return adapter

    def _mark(self, adapter: Adapter | None) -> str | None:
        """Return the text that the answer begins with: the base's mark, then the adapter's; None if neither has one."""
        return " ".join(filter(None, (self._model.mark, adapter.mark if adapter else ""))) or None

    def chat(self, body: ChatBody, headers: Mapping[str, str]) -> Work:
        adapter = self.find_model(body.model)
        self._check_tools(body)
        limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        self._check_output_length(body.wanted_tokens, limit_name)
        messages = to_chat_messages(body.messages)
        text = self.render(messages, add_generation_prompt=body.add_generation_prompt, tools=body.tools)
        prompt = self._tokenized(text, add_special_tokens=False)
        reply = plan.chat_reply(messages, mark=self._mark(adapter), json_mode=body.json_mode)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._work(
            body, headers, adapter, [(prompt, reply)], wanted_tokens=body.wanted_tokens, logprobs=logprobs
        )

    def completion(self, body: CompletionBody, headers: Mapping[str, str]) -> Work:
        adapter = self.find_model(body.model)
        self._check_output_length(body.wanted_tokens, "max_tokens")
        prompts = self._completion_prompts(body)
        mark = self._mark(adapter)
        replies = [(p, plan.completion_reply(p.text, mark=mark, json_mode=body.json_mode)) for p in prompts]
        wanted_tokens = 1 if body.echo and body.wanted_tokens == 0 else body.wanted_tokens
        return self._work(body, headers, adapter, replies, wanted_tokens=wanted_tokens, logprobs=body.logprobs)

    def prompt_of(self, given: str | list[int], truncate_tokens: int | None = None) -> Prompt:
        """Return a pooling model's prompt from text or ids, cut to the last `truncate_tokens` (-1: what fits; None:
        uncut)."""
        limit = self._max_model_len_tokens
        if truncate_tokens is not None and truncate_tokens > limit:
            raise invalid(f"truncate_prompt_tokens must be at most {limit}.", param="truncate_prompt_tokens")
        if truncate_tokens is None:
            return self._tokenized(given, add_special_tokens=True) if isinstance(given, str) else self._from_ids(given)
        tokenizer = self._model.tokenizer
        ids = tokenizer.encode(given, add_special_tokens=True) if isinstance(given, str) else given
        return self._from_ids(ids[-limit if truncate_tokens < 0 else -truncate_tokens :] if truncate_tokens else [])

    def render(
        self, messages: list[ChatMessage], *, add_generation_prompt: bool, tools: list[dict[str, object]] | None
    ) -> str:
        if not messages:
            raise invalid("Cannot apply chat template to an empty conversation. Provide at least one message.")
        try:
            return self._model.template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        except TemplateError as error:
            raise invalid(str(error)) from error

    def _work(
        self,
        body: GenerationBody,
        headers: Mapping[str, str],
        adapter: Adapter | None,
        replies: list[tuple[Prompt, str]],
        *,
        wanted_tokens: int | None,
        logprobs: int | None,
    ) -> Work:
        n = 1 if body.n is None else body.n
        longest = max(len(prompt.ids) for prompt, _ in replies)
        room = self._max_model_len_tokens - longest
        max_tokens = room if wanted_tokens is None else min(room, wanted_tokens)
        check_sampling(body, n=n, max_tokens=max_tokens, logprobs=logprobs)
        choices = [
            ReplyChoice(
                n * i + j, prompt, plan_reply(reply, self._model.tokenizer, self._ending(body, prompt, max_tokens))
            )
            for i, (prompt, reply) in enumerate(replies)
            for j in range(n)
        ]
        return Work(
            model=adapter.name if adapter else self._model.names[0],
            adapter=adapter,
            scope=_cache_scope(adapter, body.cache_salt),
            priority=_priority(body, headers),
            max_tokens=max_tokens,
            n=n,
            prompts=tuple(prompt for prompt, _ in replies),
            choices=tuple(choices),
        )

    def _ending(self, body: GenerationBody, prompt: Prompt, max_tokens: int) -> Ending:
        return Ending(
            max_tokens=min(max_tokens, self._max_model_len_tokens - len(prompt.ids)),
            stop=body.stops,
            stop_token_ids=frozenset(body.stop_token_ids or ()),
            include_stop=body.include_stop_str_in_output,
            ignore_eos=body.ignore_eos,
            min_tokens=body.min_tokens,
        )

    def _completion_prompts(self, body: CompletionBody) -> list[Prompt]:
        given = body.prompt
        if not given:
            raise invalid("You must pass at least one prompt")
        if isinstance(given, str):
            return [self._tokenized(given, add_special_tokens=body.add_special_tokens)]
        if isinstance(given[0], int):
            return [self._from_ids([token for token in given if isinstance(token, int)])]
        return [
            self._tokenized(part, add_special_tokens=body.add_special_tokens)
            if isinstance(part, str)
            else self._from_ids(list(part) if isinstance(part, list) else [])
            for part in given
        ]

    def _tokenized(self, text: str, *, add_special_tokens: bool) -> Prompt:
        limit = self._max_model_len_tokens
        max_chars = limit * self._model.tokenizer.max_chars_per_token
        if len(text) > max_chars:
            raise invalid(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {len(text)} "
                f"characters (more than {max_chars} characters, which is the upper bound for {limit} input tokens). "
                "Please reduce the length of the input prompt.",
                param="input_text",
                value=len(text),
            )
        ids = self._model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if len(ids) > limit:
            raise _too_long(limit, f"at least {limit + 1}", limit + 1)
        return Prompt(ids, text)

    def _from_ids(self, ids: list[int]) -> Prompt:
        limit = self._max_model_len_tokens
        if len(ids) > limit:
            raise _too_long(limit, str(len(ids)), len(ids))
        strange = [token for token in ids if token >= self._model.tokenizer.vocab_tokens]
        if strange:
            raise invalid(f"Token id {strange[0]} is out of vocabulary", late=True)
        return Prompt(ids, self._model.tokenizer.decode(ids))

    def _check_output_length(self, tokens: int | None, param: str) -> None:
        limit = self._max_model_len_tokens
        if tokens is not None and tokens > limit:
            raise invalid(
                f"{param}={tokens} cannot be greater than max_model_len={limit}. Please request fewer output tokens.",
                param=param,
                value=tokens,
            )

    def _check_tools(self, body: ChatBody) -> None:
        if self._can_call_tools or body.tool_choice in (None, "none"):
            return
        if body.tool_choice == "auto":
            raise invalid('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        choice = f'"{body.tool_choice}"'
        if isinstance(body.tool_choice, dict):
            choice = f'function "{body.tool_choice.get("function", {}).get("name", "")}"'
        raise invalid(f"tool_choice={choice} requires --tool-call-parser to be set")


def _cache_scope(adapter: Adapter | None, salt: str | None) -> CacheScope:
    return CacheScope(adapter.name, adapter.path, salt) if adapter else CacheScope(salt=salt)


def to_chat_messages(messages: list[Message]) -> list[ChatMessage]:
    return [ChatMessage(message.role, message.plain_text()) for message in messages]


def _too_long(limit: int, amount: str, value: int) -> Exception:
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {amount} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
        param="input_tokens",
        value=value,
    )


def _priority(body: GenerationBody, headers: Mapping[str, str]) -> int:
    """Return the request's priority. The header wins over the body; a header that is not a number is ignored."""
    try:
        return int(headers[_PRIORITY_HEADER])
    except (KeyError, ValueError):
        return body.priority
