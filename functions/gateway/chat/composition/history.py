"""History of a chat: recalled before the new messages, shortened to the context window, stored with the answer.

    recall -> shorten -> (the answer) -> remember

It changes the request's body in place. A summary is a round of its own, whose tokens the client pays for.
"""

from collections.abc import Awaitable, Callable

from functions.gateway.chat.composition import spoken
from functions.gateway.chat.composition.gathering import Gathered
from functions.gateway.chat.composition.shared import ChatRequest, ChatServices, too_much
from functions.gateway.chat.conversations import Conversation
from functions.gateway.errors import OverQuota, RequestRejected
from functions.gateway.intake import context_overflow
from functions.gateway.intake.json_body import JsonObject

SESSION_FIELDS = ("session_id", "prompt_cache_key")
_SUMMARY_TOKENS = 256
_SUMMARY_CHARS_PER_TOKEN = 3
_SUMMARY_MAX_BYTES = 4 * _SUMMARY_TOKENS
_SUMMARISED_TOKENS = _SUMMARY_TOKENS + 64  # the summary, and the text around it
_ASK_FOR_SUMMARY = (
    "Summarise this conversation for the one who goes on with it. Keep names, numbers, decisions and open questions. "
    "Write only the summary.\n\n"
)


Ask = Callable[[JsonObject], Awaitable[Gathered]]  # sends one round


class History:
    """History of one chat. `notes` are headers of its answer, `spent` the tokens of additional rounds."""

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
        self._conversation: Conversation | None = None  # set if the conversation is stored

    async def recall(self) -> None:
        """Load the session's conversation, if it has one that is stored, and insert its messages before the new ones.

        Raises OverQuota, or RequestRejected if it cannot be read now.
        """
        conversations, asked = self._shared.conversations, self._asked
        if asked.session is None or conversations is None:
            return
        metrics = self._shared.metrics
        try:
            async with conversations.slots.reserved(asked.tenant.name):
                # nothing is awaited between here and the entry of the ordinary request
                self._shared.check_quota(asked.known)
                conversation = await conversations.load(asked.tenant.name, asked.session)
        except OverQuota:
            raise
        except RequestRejected:
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
        """Insert the earlier messages before the new ones; return their number.

        The caller does not see the earlier messages, so the gateway makes them fit: the latest turns that do are
        used. Otherwise a conversation that exceeds its model's window would be rejected forever, whatever the client
        sends. If the tenant slides or summarises chats, that is applied to the whole chat instead.
        """
        new = self._body["messages"]
        self._body["messages"] = conversation.continued(new)
        last = conversation.recalled_until(new)
        last -= self._forget(too_much(self._body, self._shared.services.limits), last)
        if self._asked.tenant.context_overflow == "refuse":
            self._forget(self._shared.overflow(self._asked, self._body), last)
        return len(self._body["messages"]) - len(new)

    def _forget(self, gone: range, last: int) -> int:
        """Remove the messages with the indices `gone` that are recalled ones (before `last`); return their number."""
        forgotten = range(gone.start, min(gone.stop, last))
        self._body["messages"][forgotten.start : forgotten.stop] = []
        return len(forgotten)

    async def shorten(self, ask: Ask) -> None:
        """Replace the oldest turns by a summary if the chat exceeds its window and the tenant wants it.

        If no summary is made or it does not fit, nothing is changed and admission drops the turns.
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
        if shared.overflow(asked, self._body):  # admission would drop the summary first, as the oldest turn
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
        """Store the conversation with its answer, if it is to be stored; if that fails, a header says `not-kept`."""
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
