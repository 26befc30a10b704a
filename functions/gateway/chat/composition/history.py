"""History of a chat: recalled before its new messages, shortened to the context window, kept with the answer.

    recall -> shorten -> (the answer) -> remember

It works on the request's body in place. A summary is a round of its own, whose tokens the client pays for.
"""

from collections.abc import Awaitable, Callable

from functions.gateway.chat.composition import spoken
from functions.gateway.chat.composition.gathering import Gathered
from functions.gateway.chat.composition.shared import ChatRequest, ChatServices, too_much
from functions.gateway.chat.conversations import Conversation
from functions.gateway.errors import OverQuota, Refused
from functions.gateway.intake import context_overflow
from functions.gateway.intake.json_body import JsonObject

SESSION_FIELDS = ("session_id", "prompt_cache_key")
_SUMMARY_TOKENS = 256
_SUMMARY_CHARS_PER_TOKEN = 3
_SUMMARY_MAX_BYTES = 4 * _SUMMARY_TOKENS
_SUMMARISED_TOKENS = _SUMMARY_TOKENS + 64  # the summary, and the words around it
_ASK_FOR_SUMMARY = (
    "Summarise this conversation for the one who goes on with it. Keep names, numbers, decisions and open questions. "
    "Write only the summary.\n\n"
)


Ask = Callable[[JsonObject], Awaitable[Gathered]]  # sends one round


class History:
    """One chat's. `notes` are headers of its answer, `spent` its tokens besides."""

    def __init__(
        self,
        shared: ChatServices,
        asked: ChatRequest,
        body: JsonObject,
        notes: dict[bytes, bytes],
        spent: dict[str, int],
    ) -> None:
        self._shared = shared
        self._asked = asked
        self._body = body
        self._notes = notes
        self._spent = spent
        self._conversation: Conversation | None = None  # that is kept on

    async def recall(self) -> None:
        """Put what was said before in front of what is new."""
        conversations, asked = self._shared.conversations, self._asked
        if asked.session is None or conversations is None:
            return
        metrics = self._shared.metrics
        try:
            async with conversations.slots.taken(asked.tenant.name):
                self._shared.check_quota(asked.known)  # from here to the request's own entry nothing waits
                conversation = await conversations.load(asked.tenant.name, asked.session)
        except OverQuota:
            raise
        except Refused:
            metrics.conversation("unavailable")
            raise
        metrics.conversation(conversation.outcome)
        recalled = self._put_in_front(conversation)
        self._notes[b"x-shoal-conversation"] = b"recalled=%d" % recalled
        if self._body.get("store") is False:
            metrics.conversation("not_wished")
        else:
            self._conversation = conversation

    def _put_in_front(self, conversation: Conversation) -> int:
        """What was said before, ahead of what is new; of how many messages.

        The caller sees nothing of it, so it is ours to make it fit: the latest turns of it that do. Else a conversation
        that has outgrown its model's window would be refused for ever, whatever is sent in it. Where the tenant has
        chats slide or summarised, that is done to the whole.
        """
        new = self._body["messages"]
        self._body["messages"] = conversation.continued(new)
        last = conversation.recalled_until(new)
        last -= self._forget(too_much(self._body, self._shared.services.limits), last)
        if self._asked.tenant.context_overflow == "refuse":
            self._forget(self._shared.overflow(self._asked, self._body), last)
        return len(self._body["messages"]) - len(new)

    def _forget(self, gone: range, last: int) -> int:
        """Of these messages, those that were said before, which end at `last`; how many they were."""
        forgotten = range(gone.start, min(gone.stop, last))
        self._body["messages"][forgotten.start : forgotten.stop] = []
        return len(forgotten)

    async def shorten(self, ask: Ask) -> None:
        """Where the tenant has overlong chats summarised: the oldest turns become a summary, if a model makes one.

        If not, they are dropped at admission, as `slide` has it.
        """
        asked, shared, messages = self._asked, self._shared, self._body["messages"]
        if asked.tenant.context_overflow != "summarise" or not shared.overflow(asked, self._body):
            return
        gone = shared.overflow(asked, self._body, _SUMMARISED_TOKENS)
        headroom_tokens = shared.headroom_tokens(asked, self._body) - _SUMMARY_TOKENS
        if not gone or headroom_tokens <= 0:
            return
        summary = await self._summary(ask, messages[gone.start : gone.stop], headroom_tokens)
        if not summary:
            return
        turns = context_overflow.slide(self._body, gone)
        summarised = [
            {"role": "user", "content": f"What we said before, in short: {summary}"},
            {"role": "assistant", "content": "I remember."},
        ]
        self._body["messages"][gone.start : gone.start] = summarised
        if shared.overflow(asked, self._body):  # admission would drop the summary, the oldest turn, first
            self._body["messages"] = messages
            return
        self._notes[b"x-shoal-context"] = b"summarised=%d" % turns

    async def _summary(self, ask: Ask, messages: list[JsonObject], headroom_tokens: int) -> str:
        text = "\n".join(f"{message['role']}: {_text(message)}" for message in messages)
        content = _ASK_FOR_SUMMARY + text[-headroom_tokens * _SUMMARY_CHARS_PER_TOKEN :]
        body = {name: self._body[name] for name in ("model", *SESSION_FIELDS) if name in self._body}
        body |= {"messages": [{"role": "user", "content": content}], "max_tokens": _SUMMARY_TOKENS, "temperature": 0}
        answer = await ask(body)
        parsed = answer.parsed()
        if parsed is None:
            return ""
        spoken.add_usage(self._spent, parsed)
        message = spoken.message_in(parsed)
        said = str(message["content"]) if message is not None else ""
        return said.encode(errors="ignore")[:_SUMMARY_MAX_BYTES].decode(errors="ignore")

    async def remember(self, message: JsonObject) -> None:
        """Keep the conversation with its answer, where it is one that is kept."""
        conversations, kept, conversation = (
            self._shared.conversations,
            self._asked.tenant.conversations,
            self._conversation,
        )
        if conversations is None or kept is None or conversation is None:
            return
        saved = await conversations.save(conversation, [*self._body["messages"], message], kept)
        self._shared.metrics.conversation(saved)
        if saved != "kept":
            self._notes[b"x-shoal-conversation"] = b"not-kept"


def _text(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text") or "") for part in content or ())
