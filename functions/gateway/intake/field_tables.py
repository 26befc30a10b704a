"""Field tables: every field that OpenAI, Anthropic and vLLM 0.32 document, route by route, with its rule.

A check means that the field is sent to the engine if its value passes; `fields` explains `Strip` and `Refuse`.
`tests/gateway/test_vllm_fields.py` compares the tables with the request models of the installed engine. A field of
the engine that no table has fails the test, so that its effect is reviewed.

Ids that a caller chooses, and engine state that is keyed by them (each would connect tenants; `cache_salt` does not
separate all of them):

    cache_salt                  prefix cache                replaced by the tenant's own, HMAC(pepper, tenant)
    `uuid` of a content part    caches of pictures, sounds  replaced by HMAC(pepper, tenant, uuid) (`media`)
    session_id, X-Session-ID    cache events, hints         read here, hashed with the tenant, never sent
    prompt_cache_key            engines' affinity           the same
    request_id                  the engine's request table  refused; X-Request-Id is sent as it is (engines extend it)
    kv_, ec_transfer_params     blocks of another request   refused
    vllm_xargs                  session, cache reports, …   refused
    previous_response_id, …     stored responses            refused; `store` is never true
    previous_input_messages     the engine's own transcript refused
    priority, X-Vllm-Priority   the engine's queue          refused; only the platform's is sent
    model                       adapters by name            the engine's name of a model that the tenant may call
    mm_processor_, media_io_    part of a picture's key     refused

Of a caller's headers, only X-Request-Id is sent to an engine, after a check (`http.headers`).
"""

from functions.gateway.intake import content
from functions.gateway.intake.checks import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    anything,
    boolean,
    few_token_ids,
    integer,
    logit_bias,
    never,
    number,
    object_check,
    objects,
    one_of,
    prompts,
    short_text,
    stream_options,
    text,
    text_or_object,
    texts,
    token_ids,
    without,
)
from functions.gateway.intake.fields import FieldTable, RejectedField, Rule, Strip
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.limits import Limits

Rules = dict[str, Rule]

_OURS = RejectedField("is set by the platform: omit it")
_NOT_KEPT = "is not supported, because {} are not stored: {}"
_SAID_BEFORE = RejectedField(_NOT_KEPT.format("responses", "send the earlier messages as input"))
_NO_TEMPLATES = "a template is a program, and would run in an engine that several tenants share"
_NO_TUNING = RejectedField(
    "is not supported: it would change how an engine processes images and audio for all of its tenants"
)

# An upper limit for `stream_interval`. With fewer events a stream would look like a hung engine, and the last tokens
# of an aborted stream could not be counted.
MOST_TOKENS_AN_EVENT = 16
# Most likely tokens for each token of a prompt: the engine's own bound on `logprobs`.
_MOST_LOGPROBS = 20


def _anywhere(limits: Limits) -> Rules:
    """Return the rules of every route: fields that admission reads and fields that callers may not set."""
    return {
        "service_tier": text,
        "session_id": Strip(short_text(limits.session_chars)),
        "prompt_cache_key": Strip(short_text(limits.session_chars)),
        "cache_salt": Strip(anything),  # replaced rather than refused, because SDKs send it in good faith
        "priority": _OURS,
        "kv_transfer_params": _OURS,
        "ec_transfer_params": _OURS,
        "request_id": _OURS,
        "vllm_xargs": _OURS,
        "mm_processor_kwargs": _NO_TUNING,
        "media_io_kwargs": _NO_TUNING,
    }


def _template(limits: Limits) -> Rules:
    """Return the rules of routes with messages: inputs of a chat template, all of which become part of the prompt."""
    return {
        "tools": objects(limits.tools, "tool"),
        "documents": objects(limits.messages, "document"),
        "chat_template_kwargs": without("chat_template", _NO_TEMPLATES),
        "chat_template": RejectedField(f"is not supported: {_NO_TEMPLATES}"),
        "add_generation_prompt": boolean,
        "continue_final_message": boolean,
        "add_special_tokens": boolean,
    }


def _sampling(limits: Limits) -> Rules:
    return {
        "stream": boolean,
        "stop": texts(limits.stop_strings),
        "seed": integer(INT64_MIN, INT64_MAX),
        "temperature": number(0.0, 100.0),
        "top_p": number(0.0, 1.0),
        "top_k": integer(-1, INT32_MAX),
        "min_p": number(0.0, 1.0),
        "presence_penalty": number(-2.0, 2.0),
        "frequency_penalty": number(-2.0, 2.0),
        "repetition_penalty": number(0.0, 100.0),
        "logit_bias": logit_bias(limits.logit_bias_entries),
        "min_tokens": integer(0, INT32_MAX),
        "user": text,
        "safety_identifier": text,
        "stop_token_ids": few_token_ids(limits.logit_bias_entries),
        "include_stop_str_in_output": boolean,
        "ignore_eos": boolean,
        "skip_special_tokens": boolean,
        "structured_outputs": object_check,
        "watermarking": boolean,
        # Reasoning tokens without events would be unmetered in an aborted stream, and look like a hung engine.
        "include_reasoning": Strip(boolean),
        # fields of render routes, which are not offered
        "mm_payload": Strip(anything),
        "return_mm_kwargs": Strip(anything),
    }


def _generation(limits: Limits) -> Rules:
    return _sampling(limits) | {
        "stream_options": stream_options,
        "stream_interval": integer(1, MOST_TOKENS_AN_EVENT),
        "n": integer(1, limits.choices),
        "response_format": object_check,
        "use_beam_search": boolean,
        "length_penalty": number(-100.0, 100.0),
        "spaces_between_special_tokens": boolean,
        "bad_words": texts(limits.logit_bias_entries),
        "allowed_token_ids": token_ids,
        "repetition_detection": object_check,
        "thinking_token_budget": integer(-1, INT32_MAX),
        "truncate_prompt_tokens": integer(-1, INT32_MAX),
        "truncation_side": one_of("left", "right"),
        "prompt_logprobs": integer(0, _MOST_LOGPROBS),
        "logprob_token_ids": few_token_ids(limits.logit_bias_entries),
        "return_token_ids": boolean,
        "return_tokens_as_token_ids": boolean,
        "routed_experts_prompt_start": integer(0, INT32_MAX),
        "return_token_offsets": Strip(anything),  # a field of render routes
    }


def chat_table(limits: Limits) -> FieldTable:
    return FieldTable(
        _generation(limits)
        | _anywhere(limits)
        | _template(limits)
        | {
            "messages": content.messages(limits.messages),
            "tool_choice": text_or_object,
            "store": boolean,
            "max_completion_tokens": integer(1, INT32_MAX),
            "max_tokens": integer(1, INT32_MAX),
            "logprobs": boolean,
            "top_logprobs": integer(0, _MOST_LOGPROBS),
            "parallel_tool_calls": boolean,
            "reasoning_effort": text,
            "echo": boolean,
            "return_prompt_text": boolean,
            # OpenAI's fields that vLLM ignores
            "functions": objects(limits.tools, "function"),
            "function_call": text_or_object,
            "metadata": object_check,
            "modalities": texts(limits.tools),
            "audio": object_check,
            "prediction": object_check,
            "moderation": object_check,
            "verbosity": text,
            "web_search_options": object_check,
            "prompt_cache_options": object_check,
            "prompt_cache_retention": text,
        }
    )


def completion_table(limits: Limits) -> FieldTable:
    return FieldTable(
        _generation(limits)
        | _anywhere(limits)
        | {
            "prompt": prompts(limits.prompts, "prompts", may_be_empty=True),
            "prompt_embeds": RejectedField("is not supported: send text or token ids"),
            "max_tokens": integer(0, INT32_MAX),
            "best_of": integer(1, limits.choices),
            "echo": boolean,
            "logprobs": integer(0, _MOST_LOGPROBS),
            "suffix": text,
            "add_special_tokens": boolean,
        }
    )


def responses_table(limits: Limits) -> FieldTable:
    """Return the table of /v1/responses. Fields that need stored state are refused with an alternative."""
    return FieldTable(
        _sampling(limits)
        | _anywhere(limits)
        | {
            "input": content.items(limits.messages),
            "instructions": text,
            "max_output_tokens": integer(1, INT32_MAX),
            "tools": content.callers_tools(limits.tools),
            "tool_choice": text_or_object,
            "parallel_tool_calls": boolean,
            "max_tool_calls": integer(1, INT32_MAX),
            "text": object_check,
            "reasoning": object_check,
            "metadata": object_check,
            "include": texts(limits.tools),
            "truncation": text,
            "top_logprobs": integer(0, _MOST_LOGPROBS),
            "chat_template_kwargs": without("chat_template", _NO_TEMPLATES),
            "enable_response_messages": boolean,
            "store": never(
                "is not supported: omit it or send false, and send the earlier messages as input",
            ),
            "background": never("is not supported: omit it, and use /v1/batches for work that may wait"),
            "previous_response_id": _SAID_BEFORE,
            "conversation": _SAID_BEFORE,
            "previous_input_messages": RejectedField(
                "is set by the engine: omit it, and send the earlier messages as input"
            ),
            "prompt": RejectedField(_NOT_KEPT.format("prompts", "send instructions and input")),
            # OpenAI's fields that vLLM ignores
            "stream_options": stream_options,
            "context_management": anything,
            "moderation": object_check,
            "prompt_cache_options": object_check,
            "prompt_cache_retention": text,
        }
    )


def disable_storing(body: JsonObject) -> None:
    """Set `store` to false, so that the engine stores no response: the next request may go to another engine."""
    body["store"] = False


def messages_table(limits: Limits) -> FieldTable:
    """Return the table of Anthropic's fields, and `min_tokens`, which engines also apply here.

    Anthropic's `service_tier` values do not map to service classes.
    """
    return FieldTable(
        _anywhere(limits)
        | {
            "messages": content.anthropic_messages(limits.messages),
            "system": content.text_or_parts,
            "max_tokens": integer(1, INT32_MAX),
            "min_tokens": integer(0, INT32_MAX),
            "stop_sequences": texts(limits.stop_strings),
            "stream": boolean,
            "temperature": number(0.0, 100.0),
            "top_p": number(0.0, 1.0),
            "top_k": integer(-1, INT32_MAX),
            "tools": content.anthropic_tools(limits.tools),
            "tool_choice": object_check,
            "thinking": object_check,
            "output_config": object_check,
            "metadata": object_check,
            "chat_template_kwargs": without("chat_template", _NO_TEMPLATES),
            "watermarking": boolean,
            "mm_payload": Strip(anything),  # fields of render routes
            "return_mm_kwargs": Strip(anything),
            "mcp_servers": Strip(anything),  # engines call no servers for callers
            # Anthropic's fields that vLLM ignores
            "output_format": object_check,
            "cache_control": object_check,
            "container": text_or_object,
            "context_management": object_check,
            "inference_geo": text,
            "speed": text,
            "betas": texts(limits.tools),
        }
    )


def embeddings_table(limits: Limits) -> FieldTable:
    return FieldTable(
        _pooling(limits)
        | _template(limits)
        | {
            "input": prompts(limits.pooling_inputs, "inputs", ": send the rest in further requests"),
            "messages": content.messages(limits.messages),
            "dimensions": integer(1, 65_536),
            "encoding_format": one_of("float", "base64"),
            "embed_dtype": one_of("float32"),
            "endianness": one_of("native", "little"),
        }
    )


def classify_table(limits: Limits) -> FieldTable:
    return FieldTable(
        _pooling(limits)
        | _template(limits)
        | {
            "input": prompts(limits.pooling_inputs, "inputs", ": send the rest in further requests"),
            "messages": content.messages(limits.messages),
        }
    )


def score_table(limits: Limits) -> FieldTable:
    names = ("queries", "text_1", "data_1", "documents", "items", "text_2", "data_2")
    return FieldTable(_pairs(limits) | {name: content.scored(limits.pooling_inputs) for name in names})


def rerank_table(limits: Limits) -> FieldTable:
    return FieldTable(
        _pairs(limits)
        | {
            "query": content.scored_one,
            "documents": content.scored(limits.pooling_inputs),
            "top_n": integer(0, INT32_MAX),
            "return_documents": boolean,
        }
    )


def _pairs(limits: Limits) -> Rules:
    return _pooling(limits) | {
        "instruction": text,
        "max_tokens_per_query": integer(0, INT32_MAX),
        "max_tokens_per_doc": integer(0, INT32_MAX),
        "chat_template_kwargs": without("chat_template", _NO_TEMPLATES),
    }


def _pooling(limits: Limits) -> Rules:
    return {
        "user": text,
        "truncate_prompt_tokens": integer(-1, INT32_MAX),
        "truncation_side": one_of("left", "right"),
        "padding": one_of("max_length", "do_not_pad"),
        "add_special_tokens": boolean,
        "use_activation": boolean,
        "stream": never("is not supported on this route: omit it"),
    } | _anywhere(limits)


def tokenize_table(limits: Limits) -> FieldTable:
    return FieldTable(
        _template(limits)
        | {
            "messages": content.messages(limits.messages),
            "prompt": text,
            "return_token_strs": boolean,
        }
        | _anywhere(limits)
    )


def detokenize_table(limits: Limits) -> FieldTable:
    return FieldTable(_anywhere(limits) | {"tokens": token_ids})
