"""Pieces of Markdown, and CSV files for tables that are too long for a page."""

import csv
import io
from collections.abc import Iterable, Sequence

NOTICE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->"


def page(title: str, about: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", NOTICE, about, *(part for part in parts if part))) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines)


def csv_file(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as CSV with a header line, which forges show as a searchable table; each row is one line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([" ".join(value.split()) for value in row] for row in rows)
    return text.getvalue()


def cell(text: str) -> str:
    """Return the text as one line, with bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def link(path: str) -> str:
    """Return a link to a file below the page's folder, named by its path."""
    return f"[{path}]({path})"


def slug(text: str) -> str:
    """Return the file name of a title or a route: `Controller, Kubernetes` is controller-kubernetes."""
    return "-".join("".join(each if each.isalnum() else " " for each in text.lower()).split())


def number(value: float) -> str:
    """Return the number with commas and without trailing zeros."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.12g}"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    text = " ".join(text.split())
    if not text:
        return ""
    first = text.split()[0]
    is_word = first[0].isalpha() and first.islower() and "_" not in first and not first.endswith(":")
    begun = text[0].upper() + text[1:] if is_word else text
    return begun if begun[-1] in ".:!?…" else begun + "."
