"""`shoal chat`: one prompt, a prompt from a pipe, or a conversation; always streamed."""

import sys

from functions.cli.answers import Asker, Chat, demo_key
from functions.cli.place import here
from functions.cli.refused import Refused

PROMPT_MAX_CHARS = 1_000_000
MAX_TURNS = 200  # of a conversation that is sent whole each time


def chat(
    model: str, *, once: str | None, system: str | None, max_tokens: int, temperature: float, tenant: str | None
) -> None:
    place = here()
    _, key = demo_key(place, tenant, model)
    opening = [{"role": "system", "content": system}] if system else []
    with Asker(place) as asker:
        if once is None and sys.stdin.isatty():
            _converse(asker, Chat(model, opening, max_tokens, temperature), key.key)
            return
        prompt = once if once is not None else _piped()
        messages = [*opening, {"role": "user", "content": prompt}]
        _print_answer(asker, Chat(model, messages, max_tokens, temperature), key.key)


def _converse(asker: Asker, chat: Chat, key: str) -> None:
    sys.stderr.write(f"{chat.model}; an empty line or Ctrl-D ends it\n")
    for _ in range(MAX_TURNS):
        try:
            prompt = input("> ").strip()
        except EOFError:
            return
        if not prompt:
            return
        chat.messages.append({"role": "user", "content": prompt})
        try:
            answer = _print_answer(asker, chat, key)
        except Refused as error:
            chat.messages.pop()  # as if it had not been asked: the next turn may go well
            sys.stderr.write(f"\nshoal: {error}\n")
            continue
        chat.messages.append({"role": "assistant", "content": answer})


def _print_answer(asker: Asker, chat: Chat, key: str) -> str:
    pieces = []
    for text in asker.stream(chat, key):
        pieces.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(pieces)


def _piped() -> str:
    prompt = sys.stdin.read(PROMPT_MAX_CHARS + 1).strip()
    if not prompt:
        raise Refused("nothing was asked: standard input is empty; give a prompt with --once, or pipe one in")
    if len(prompt) > PROMPT_MAX_CHARS:
        raise Refused(f"the prompt has more than {PROMPT_MAX_CHARS} characters")
    return prompt
