"""Choice of a pool for a request by rules over its visible features, without running a model.

A RoutingPolicy's `classifier` names a model id that is not a model (`auto`, for example). A request for it goes to the
base model of the pool of the first rule whose conditions all hold, or of `otherwise` if none does. A pool that the
tenant may not call is skipped, so rules give no additional access.

Worked example (test_worked_example_of_the_prologue): rules {tools: true} to 70b, {maxPromptTokens: 200} to 1b,
otherwise 8b. A question of 50 tokens goes to 1b, the same with tools to 70b, a page of 900 tokens to 8b.

The rules see the last message (of a completion, the prompt) up to `LOOK_CHARS`, because it holds the actual question,
and the length of the whole request.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from functions.api.ids import PoolName
from functions.api.snapshot import ClassifierEntry, RuleEntry, Script

LOOK_CHARS = 16_384
_SCRIPT_CHARS = 1024
_FENCE = "```"

_RANGES: tuple[tuple[int, int, Script], ...] = (
    (0x0041, 0x024F, "latin"),
    (0x0370, 0x03FF, "greek"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0590, 0x05FF, "hebrew"),
    (0x0600, 0x06FF, "arabic"),
    (0x0900, 0x097F, "devanagari"),
    (0x0E00, 0x0E7F, "thai"),
    (0x3040, 0x30FF, "kana"),
    (0x4E00, 0x9FFF, "han"),
    (0xAC00, 0xD7AF, "hangul"),
)


@dataclass(frozen=True, slots=True)
class Sketch:
    """Features of a request that the rules see."""

    prompt_tokens: int  # estimated
    has_tools: bool
    text: str  # the last message


def choose(entry: ClassifierEntry, sketch: Sketch, may_call: Callable[[PoolName], bool]) -> PoolName | None:
    """Return the first suitable pool that the tenant may call, or None if it may call none of them."""
    return next((pool for pool in _suitable(entry, sketch) if may_call(pool)), None)


def _suitable(entry: ClassifierEntry, sketch: Sketch) -> Iterator[PoolName]:
    text = sketch.text[:LOOK_CHARS].lower()
    for rule in entry.rules:
        if _holds(rule, sketch, text):
            yield rule.target_pool
    yield entry.otherwise


def _holds(rule: RuleEntry, sketch: Sketch, text: str) -> bool:
    if rule.min_prompt_tokens is not None and sketch.prompt_tokens < rule.min_prompt_tokens:
        return False
    if rule.max_prompt_tokens is not None and sketch.prompt_tokens > rule.max_prompt_tokens:
        return False
    if rule.tools is not None and sketch.has_tools != rule.tools:
        return False
    if rule.code is not None and (_FENCE in text) != rule.code:
        return False
    if rule.keywords and not any(word in text for word in rule.keywords):
        return False
    return rule.script is None or script_of(text) == rule.script


def script_of(text: str) -> Script | None:
    """Return the script of most letters at the start of the text, or None if there is none. If there is any kana, han
    counts as kana."""
    counts: dict[Script, int] = {}
    for char in text[:_SCRIPT_CHARS]:
        if char.isalpha():
            found = _script_of_letter(ord(char))
            if found is not None:
                counts[found] = counts.get(found, 0) + 1
    if counts.get("kana") and counts.get("han"):
        counts["kana"] += counts.pop("han")
    return max(counts.items(), key=lambda counted: (counted[1], counted[0]))[0] if counts else None


def _script_of_letter(code: int) -> Script | None:
    return next((script for first, last, script in _RANGES if first <= code <= last), None)
