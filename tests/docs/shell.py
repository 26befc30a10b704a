"""Commands in pages: fenced blocks of `sh` and `console`, each with its class.

    ```sh run             run on a fleet of simulated engines; the blocks of a page are one script
    ```sh run: fleet      the same on a fleet that several pages share and that has answered requests
    ```sh run: offline    run in a checkout without a fleet, each block alone
    ```sh needs: …        not run, because it needs one of NEEDS
    ```text output        lines that the page's script prints, in this order; … matches any text

`console` is a session with its output and is never run.
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
    """Return the class after the language: `run`, `run: offline`, `needs: cluster` …"""
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
    """Return the pages that have commands of this class."""
    return sorted({fence.page for fence in of_class(word)})


def script(page: Path, word: str = "run") -> str:
    return "\n".join(fence.text for fence in fences(page) if is_shell(fence) and classification(fence) == word)


def expected_output(page: Path) -> list[str]:
    return [line for fence in fences(page) if fence.info == "text output" for line in fence.text.splitlines()]


def shoal_calls(page: Path) -> Iterator[str]:
    """Yield the arguments of each call of `shoal` in shell blocks and between backticks."""
    for fence in fences(page):
        if is_shell(fence):
            text = fence.text.replace("\\\n", " ")
            if language(fence) == "console":  # lines without a prompt are output
                text = "\n".join(line for line in text.splitlines() if line.startswith("$ "))
            yield from (found["rest"].strip() for found in _SHOAL.finditer(text))
    yield from (found["rest"].replace("\\|", "|") for found in _INLINE.finditer(page.read_text()))
