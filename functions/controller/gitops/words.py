"""Error messages for a pusher: place, key path, message, and the line itself with a caret. Pure.

    policies/tenants.yaml:9:3: spec.teir: unknown key; allowed: tier, keys, …; did you mean "tier"?
        9 |   teir: standard
          |   ^

A commit's content is untrusted: control characters never reach the terminal, and lines and lists are bounded.
"""

from collections.abc import Iterable, Mapping, Sequence

from functions.api.problems import Problem

SHOWN_PROBLEMS = 50
UNQUOTED = "hmacSha256"  # this line may contain the key itself by mistake, so it is kept out of pipelines' logs
_LINE_MAX_CHARS = 160
_MESSAGE_MAX_CHARS = 600


def problem_lines(problems: Sequence[Problem], texts: Mapping[str, bytes]) -> list[str]:
    """Return the first SHOWN_PROBLEMS problems with their lines; `texts` has the files by name."""
    lines = [line for problem in problems[:SHOWN_PROBLEMS] for line in _problem_excerpt(problem, texts)]
    more = len(problems) - SHOWN_PROBLEMS
    return [*lines, f"… and {more} more"] if more > 0 else lines


def printable(text: str, limit: int = _MESSAGE_MAX_CHARS) -> str:
    """Return the text on one line of at most `limit` characters, with control characters replaced by spaces."""
    safe = "".join(character if character.isprintable() else " " for character in text[: limit + 1])
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def counted(items: Iterable[object], what: str) -> str:
    """Return the number of items with the noun `what`, for example `1 problem` or `2 problems`."""
    count = sum(1 for _ in items)
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _problem_excerpt(problem: Problem, texts: Mapping[str, bytes]) -> list[str]:
    place = problem.place
    lines = texts.get(place.file, b"").split(b"\n")
    if not 0 < place.line <= len(lines) or problem.key_path.endswith(UNQUOTED):
        return [printable(str(problem))]
    text = lines[place.line - 1].decode("utf-8", "replace")
    from_column = max(0, place.column - 1 - _LINE_MAX_CHARS // 2)  # the relevant part of a long line
    shown = printable(text[from_column:], _LINE_MAX_CHARS).rstrip()
    number = f"{place.line:>6}"
    excerpt = [f"{number} | {shown}"]
    if 0 < place.column <= from_column + len(shown) + 1:
        excerpt.append(f"{' ' * len(number)} | {' ' * (place.column - 1 - from_column)}^")
    return [printable(str(problem)), *excerpt]
