"""Links of pages have targets, every page of docs/ is linked, and pages that code mentions exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, anchors, links, pages

_OUTSIDE = re.compile(r"^[a-z]+:")
_MENTION = re.compile(r"(?<![\w/.-])docs/[\w./-]*\w")
_READ = {".py", ".md", ".yaml", ".toml", ".conf", ".js", ".html", ".sh", ".csv", ""}


def targets(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files that the page links to, with the anchor."""
    for link in links(page):
        if not _OUTSIDE.match(link):
            path, _, anchor = link.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def dead_links(page: Path) -> list[str]:
    dead = []
    for target, anchor in targets(page):
        if not target.exists():
            dead.append(f"{target} is not there")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            dead.append(f"{target.name} has no heading #{anchor}")
    return dead


def reachable_from(start: Path) -> set[Path]:
    """Return the pages that a reader can reach by links; a link to a folder means its README."""
    seen, ahead = {start}, [start]
    while ahead:
        for target, _ in targets(ahead.pop()):
            page = target / "README.md" if target.is_dir() else target
            if page.suffix == ".md" and page.exists() and page not in seen:
                seen.add(page)
                ahead.append(page)
    return seen


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_have_targets(page: Path) -> None:
    assert dead_links(page) == []


def test_every_page_of_docs_is_linked_from_the_readme_or_a_page_behind_it() -> None:
    alone = set(DOCS.rglob("*.md")) - reachable_from(ROOT / "README.md")
    assert sorted(page.relative_to(ROOT).as_posix() for page in alone) == []


def test_dead_link_unknown_anchor_and_unlinked_page_are_detected(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n[b](b.md#two-words) [x](b.md#three) [gone](c.md) [out](https://example.com)\n")
    (tmp_path / "b.md").write_text("# B\n## Two `words`\n```\n[in code](nowhere.md)\n```\n")
    (tmp_path / "lonely.md").write_text("# L\n")
    assert dead_links(tmp_path / "a.md") == ["b.md has no heading #three", f"{tmp_path / 'c.md'} is not there"]
    assert dead_links(tmp_path / "b.md") == []
    assert reachable_from(tmp_path / "a.md") == {tmp_path / "a.md", tmp_path / "b.md"}


_INPUTS = ROOT / "tests" / "fuzz" / "corpus"  # arbitrary bytes


def test_pages_that_code_and_manifests_name_are_there() -> None:
    wrong = []
    for folder in ("functions", "tests", "loadtests", "manifests", "policies", "registry", "inferenceservices", "docs"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in _READ and file.is_file() and file != Path(__file__) and _INPUTS not in file.parents:
                named = _MENTION.findall(file.read_text())
                wrong += [f"{file.relative_to(ROOT)}: {name}" for name in named if gone(name)]
    assert wrong == []


def gone(name: str) -> bool:
    """Return True if the page does not exist. A decision record may be named by its number alone."""
    number = re.fullmatch(r"docs/decisions/(\d{4})", name)
    return not (list(DOCS.glob(f"decisions/{number[1]}-*.md")) if number else (ROOT / name).exists())
