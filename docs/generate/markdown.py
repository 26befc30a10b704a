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


def sentence(text: str) -> str:
    """With a capital and a full stop, whichever way it was written."""
    text = " ".join(text.split())
    if not text:
        return ""
    begun = text if text[:2].isupper() or not text[0].isalpha() else text[0].upper() + text[1:]
    return begun if begun[-1] in ".:!?…" else begun + "."
