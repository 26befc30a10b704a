"""What of a recalled conversation must stay away so that the request with it passes the checks of a request's shape.

Each request that was kept had at most so many messages and values (objects, arrays and keys); all of them together may
have more. The caller sees none of that, so the oldest turns go, as they do where tokens are too many:

    values = those of the body around the messages + those of each message     at most `Limits.json_values`
    worked example (test_turns_go_that_hold_too_many_values): turns of 40,003, 40,003 and, new, 40,003 values beside ten
    around: 120,019 are over 100,000, so the first turn goes

Neighbours: `strict_json` counts values; `decisions.request.context_window` says which turns go, whatever is counted.
"""

from functions.decisions.request.context_window import Said, dropped
from functions.gateway.intake.json_body import JsonObject, has_at_most, values_in
from functions.gateway.limits import Limits


def too_much(body: JsonObject, limits: Limits) -> range:
    """The indices of messages that must go; those of the last turn are never among them."""
    messages = body["messages"]
    gone = range(0)
    if len(messages) > limits.messages:
        gone = dropped([Said(message["role"], 1) for message in messages], limits.messages)
    if not has_at_most(body, limits.json_values):
        room = limits.json_values - values_in(body | {"messages": []})
        by_values = dropped([Said(message["role"], values_in(message)) for message in messages], room)
        gone = max(gone, by_values, key=len)
    return gone
