"""Every command in the pages is run by a test or declares what it needs; its subcommands and options exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from docs.generate.commands import commands
from tests.docs.pages import DOCS, ROOT, Fence, data_files, pages, prose
from tests.docs.shell import LANGUAGES, NEEDS, all_fences, is_classified, is_shell, language, script_pages, shoal_calls

COMMANDS = {tuple(command.name.split()[1:]): command.options for command in commands()}
_GROUPS = {name[:1] for name in COMMANDS if len(name) > 1}
_OF_THE_PAST = {"CHANGELOG.md"}


def speaks_of_today() -> list[Path]:
    return [page for page in pages() if page.name not in _OF_THE_PAST and "decisions" not in page.parts]


def test_every_block_has_a_language() -> None:
    assert [fence.place for fence in all_fences() if language(fence) not in LANGUAGES] == []


def test_every_command_is_run_or_says_what_it_needs() -> None:
    unclassified = [fence.place for fence in all_fences() if is_shell(fence) and not is_classified(fence)]
    assert unclassified == [], f"say `sh run`, or `sh needs: …` with one of {sorted(NEEDS)}"


def test_unclassified_command_is_detected() -> None:
    def fence(info: str) -> Fence:
        return Fence(ROOT / "README.md", 1, info, "make up\n")

    assert not is_classified(fence("sh")) and not is_classified(fence("sh needs: luck"))
    assert not is_classified(fence("console run"))
    assert all(is_classified(fence(info)) for info in ("sh run", "sh run: fleet", "sh run: offline"))
    assert is_classified(fence("console needs: cluster"))


@pytest.mark.parametrize("page", speaks_of_today(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_are_in_blocks_rather_than_indented(page: Path) -> None:
    assert re.findall(r"\n\n    (?:\$ )?(?:kubectl|shoal|git|make|curl|python|helm) .*", prose(page)) == []


def wrong_in(call: str) -> str:
    """Return the part of a call of `shoal` that does not exist, or an empty text."""
    words = re.findall(r"[^\s\[\]]+", call)
    if not words or words[0].startswith(("-", "…", "COMMAND", "*", "<")):
        return ""
    heads = [(word,) for word in words[0].split("|")]
    rest = words[1:]
    if all(head in _GROUPS for head in heads) and rest and re.match(r"[a-z]", rest[0]):
        heads, rest = [(*head, word) for head in heads for word in rest[0].split("|")], rest[1:]
    missing = [" ".join(head) for head in heads if head not in COMMANDS and head not in _GROUPS]
    if missing:
        return f"there is no command {missing[0]}"
    known = {"-h", "--help", "--region"}.union(*(COMMANDS.get(head, set()) for head in heads))
    given = {word.partition("=")[0].strip("…,.") for word in rest if re.match(r"--?[a-z]", word)}
    unknown = sorted(given - known)
    return f"shoal {' '.join(heads[0])} has no {unknown[0]}" if unknown else ""


@pytest.mark.parametrize(
    "page", [*speaks_of_today(), *data_files()], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_commands_of_shoal_exist_with_their_options(page: Path) -> None:
    assert [f"{call}: {wrong_in(call)}" for call in shoal_calls(page) if wrong_in(call)] == []


def test_unknown_command_is_detected() -> None:
    assert wrong_in("up --engine sim") == wrong_in("rollout ls|watch") == wrong_in("key create acme --id ci") == ""
    assert wrong_in("fly") == "there is no command fly"
    assert wrong_in("rollout ls|undo") == "there is no command rollout undo"
    assert wrong_in("up --fast") == "shoal up has no --fast"


def test_targets_and_modules_exist() -> None:
    text = "\n".join(page.read_text() for page in speaks_of_today())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) - targets == set()
    named = set(re.findall(r"python -m ((?:functions|loadtests|tests|docs)[\w.]*\w)", text))
    assert [name for name in sorted(named) if importlib.util.find_spec(name) is None] == []
    assert named


def test_the_tutorial_is_run() -> None:
    assert DOCS / "tutorial.md" in script_pages()


def test_no_page_has_scripts_of_two_classes() -> None:
    assert set(script_pages()) & set(script_pages("run: fleet")) == set()
