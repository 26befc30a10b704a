"""context_window: which messages of a too long conversation stay."""

from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.request.context_window import Said, messages_to_drop, turns_in

ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
CONVERSATIONS = st.lists(st.builds(Said, role=ROLES, tokens=st.integers(0, 50)), max_size=30)


def chat(*said: tuple[str, int]) -> list[Said]:
    return [Said(role, tokens) for role, tokens in said]


def test_worked_example() -> None:
    turns = chat(("system", 10), ("user", 20), ("assistant", 10), ("user", 30), ("assistant", 10), ("user", 25))
    assert messages_to_drop(turns, 100 - 20) == range(1, 3)


def test_tool_result_is_dropped_with_its_call() -> None:
    turns = chat(("user", 10), ("assistant", 10), ("tool", 10), ("assistant", 10), ("user", 10))
    assert messages_to_drop(turns, 45) == range(4)


def test_the_last_turn_is_never_cut() -> None:
    assert len(messages_to_drop(chat(("system", 5), ("user", 10), ("assistant", 10), ("user", 60)), 50)) == 0


def test_conversation_that_fits_stays_whole() -> None:
    assert len(messages_to_drop(chat(("system", 5), ("user", 10)), 15)) == 0
    assert len(messages_to_drop([], 0)) == 0


def test_turns_are_counted_by_questions() -> None:
    assert turns_in(chat(("user", 1), ("assistant", 1), ("tool", 1), ("user", 1))) == 2
    assert turns_in(chat(("assistant", 1))) == 1
    assert turns_in([]) == 0


@given(CONVERSATIONS, st.integers(-10, 1000))
def test_kept_messages_fit_and_begin_with_a_question(messages: list[Said], room_tokens: int) -> None:
    gone = messages_to_drop(messages, room_tokens)
    kept = [said for index, said in enumerate(messages) if index not in gone]
    if not gone:
        return
    assert sum(said.tokens for said in kept) <= room_tokens
    assert kept and gone.stop < len(messages)
    assert messages[gone.stop].role == "user", "what stays begins with a question"
    assert all(said.role in ("system", "developer") for said in messages[: gone.start])


@given(CONVERSATIONS, st.integers(0, 1000))
def test_more_room_never_drops_more(messages: list[Said], room_tokens: int) -> None:
    less, more = messages_to_drop(messages, room_tokens), messages_to_drop(messages, room_tokens + 7)
    if less and more:
        assert len(more) <= len(less)
