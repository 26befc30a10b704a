"""Pieces of Markdown."""

from collections.abc import Iterable, Sequence

NOTICE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->"


def page(title: str, about: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", NOTICE, about, *(part for part in parts if part))) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines)


def cell(text: str) -> str:
    """One line; bars are the table's own."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def number(value: float) -> str:
    """With commas, and no zeros behind the point."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.12g}"


def sentence(text: str) -> str:
    """With a capital and a full stop, whichever way it was written."""
    text = " ".join(text.split())
    if not text:
        return ""
    first = text.split()[0]
    is_word = first[0].isalpha() and first.islower() and "_" not in first and not first.endswith(":")
    begun = text[0].upper() + text[1:] if is_word else text
    return begun if begun[-1] in ".:!?…" else begun + "."
