"""Commands in pages: fenced blocks of `sh` and `console`, each with what becomes of it.

    ```sh run             run on a fleet of simulated engines, all of a page's as one script
    ```sh run: fleet      all of a page's as one script, on a fleet that other pages use as well and that has answered
    ```sh run: offline    run in a checkout without a fleet, each block alone
    ```sh needs: …        not run, and why: it needs one of NEEDS
    ```text output        what the page's script prints: each line in this order, … for what differs

`console` is a session with its output, and never run.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import Fence, fences, pages

LANGUAGES = {"sh", "console", "text", "yaml", "json", "python", "halt", "scale"}
NEEDS = {
    "cluster": "a Kubernetes cluster",
    "network": "a package index",
    "real engine": "vLLM and a model: `make up`",
    "fleet": "a running fleet, and models or clients that the page does not make",
    "traces": "recorded traffic",
    "minutes": "minutes to hours",
}
_SHOAL = re.compile(
    r"(?:^|[|;&(]|\$ |\b(?:do|then|until|while|if|else) )\s*(?:\.venv/bin/)?shoal +(?P<rest>[^|;&)#\n]*)", re.MULTILINE
)
_INLINE = re.compile(r"`(?:\.venv/bin/)?shoal (?P<rest>[^`\n]+)`")


def language(fence: Fence) -> str:
    return fence.info.split(" ", 1)[0]


def is_shell(fence: Fence) -> bool:
    return language(fence) in ("sh", "console")


def classification(fence: Fence) -> str:
    """What stands behind the language: `run`, `run: offline`, `needs: cluster` …"""
    return fence.info.partition(" ")[2].removeprefix("pre-receive").strip()


def is_classified(fence: Fence) -> bool:
    word = classification(fence)
    runs = word in ("run", "run: fleet", "run: offline") and language(fence) == "sh"
    return runs or (word.startswith("needs: ") and word.removeprefix("needs: ") in NEEDS)


def all_fences() -> list[Fence]:
    return [fence for page in pages() for fence in fences(page)]


def of_class(word: str) -> list[Fence]:
    return [fence for fence in all_fences() if is_shell(fence) and classification(fence) == word]


def script_pages(word: str = "run") -> list[Path]:
    """Pages whose commands of this class are one script."""
    return sorted({fence.page for fence in of_class(word)})


def script(page: Path, word: str = "run") -> str:
    return "\n".join(fence.text for fence in fences(page) if is_shell(fence) and classification(fence) == word)


def expected_output(page: Path) -> list[str]:
    return [line for fence in fences(page) if fence.info == "text output" for line in fence.text.splitlines()]


def shoal_calls(page: Path) -> Iterator[str]:
    """What stands behind `shoal` in shell blocks and between backticks."""
    for fence in fences(page):
        if is_shell(fence):
            text = fence.text.replace("\\\n", " ")
            if language(fence) == "console":  # what stands below a prompt's line is its output
                text = "\n".join(line for line in text.splitlines() if line.startswith("$ "))
            yield from (found["rest"].strip() for found in _SHOAL.finditer(text))
    yield from (found["rest"].replace("\\|", "|") for found in _INLINE.finditer(page.read_text()))
