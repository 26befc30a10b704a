"""Check the prose of the tree: `python -m tests.prose [--list [PATH…]] [--update]`.

Five kinds of finding are counted per package (two folders deep, as `functions/gateway` or `docs/how-to`):

    fragment      a docstring, comment or help text that can only be read as a continuation of the name above it
    person        a word for a person, in prose or in the name of a test, where a thing is meant
    generic verb  a function whose whole name is a verb that any function could have (`look`, `take`, `begin`)
    class twice   a public class of functions/ whose name another package or module uses, too

`counts.json` has the number of findings that each package may have. The number may only fall: `--update` writes lower
counts and refuses higher ones. `--list` prints every finding as path:line. words.toml has the words. The exit status is
1 if a package has more findings than its count, and those findings are printed.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.prose.readers import Text, texts_of

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
COUNTS = FOLDER / "counts.json"
SUFFIXES = {".py", ".md", ".csv", ".yaml", ".yml"}
NOT_OURS = ("tests/fuzz/corpus/", "tests/prose/")


@dataclass(frozen=True, slots=True)
class Finding:
    package: str
    kind: str
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text.splitlines()[0][:110]}"


@dataclass(frozen=True, slots=True)
class Words:
    """The word lists, compiled."""

    fragment: re.Pattern[str]
    whole_clause: re.Pattern[str]
    comment: re.Pattern[str]
    person: re.Pattern[str]
    generic: frozenset[str]

    @classmethod
    def read(cls, path: Path = FOLDER / "words.toml") -> "Words":
        lists = tomllib.loads(path.read_text())

        def one_of(name: str) -> str:
            return "|".join(map(re.escape, lists[name]))

        return cls(
            fragment=re.compile(rf"({one_of('fragment_starts')})(?!\w)"),
            whole_clause=re.compile(rf"({one_of('clause_starts')})\b[^.]*,\s|(It|They) \w+s?\b"),
            comment=re.compile(rf"({one_of('comment_starts')})(?!\w)", re.IGNORECASE),
            person=re.compile(rf"\b({one_of('persons')})\b", re.IGNORECASE),
            generic=frozenset(lists["generic_verbs"]),
        )

    def kinds(self, text: Text) -> Iterator[str]:
        """Yield the kind of each finding in one text."""
        is_headline = text.kind in ("docstring", "help")
        if is_headline and self.fragment.match(text.text) and not self.whole_clause.match(text.text):
            yield "fragment"
        if text.kind == "comment" and self.comment.match(text.text):
            yield "fragment"
        if text.kind == "function" and text.text.strip("_") in self.generic:
            yield "generic verb"
        if text.kind == "test":
            yield from ("person" for _ in self.person.findall(text.text.replace("_", " ")))
        if text.kind in ("docstring", "comment", "help", "page"):
            yield from ("person" for _ in self.person.findall(text.text))


def tracked_files(root: Path = ROOT) -> list[Path]:
    """Return the files of the tree that hold prose, without corpora and the lists of this check."""
    output = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    paths = [path for path in output.split("\0") if Path(path).suffix in SUFFIXES and not path.startswith(NOT_OURS)]
    return [root / path for path in sorted(paths) if (root / path).is_file()]


def findings_in(paths: Iterable[Path], words: Words, root: Path = ROOT) -> list[Finding]:
    """Return the findings of all files, those about class names last."""
    found: list[Finding] = []
    classes: dict[str, list[Finding]] = defaultdict(list)
    for path in paths:
        relative = path.relative_to(root)
        package = "/".join(relative.parts[:-1][:2]) or "."
        for text in texts_of(path):
            found += [Finding(package, kind, str(relative), text.line, text.text) for kind in words.kinds(text)]
            if text.kind == "class" and relative.parts[0] == "functions" and not text.text.startswith("_"):
                classes[text.text].append(Finding(package, "class twice", str(relative), text.line, text.text))
    return [*found, *(each for same in classes.values() if len(same) > 1 for each in same)]


def counts_of(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """Return the number of findings by package and kind."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in findings:
        counts[each.package][each.kind] += 1
    return {package: dict(sorted(counts[package].items())) for package in sorted(counts)}


def risen(counts: Mapping[str, Mapping[str, int]], most: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str]]:
    """Return package and kind of each count above its limit; a limit that is not in the file is 0."""
    return [
        (package, kind)
        for package, kinds in counts.items()
        for kind, count in kinds.items()
        if count > most.get(package, {}).get(kind, 0)
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description="Check the prose of the tree.")
    parser.add_argument("--list", nargs="*", metavar="PATH", help="print all findings below these paths")
    parser.add_argument("--update", action="store_true", help="write lower counts to counts.json")
    options = parser.parse_args(arguments)
    findings = findings_in(tracked_files(), Words.read())
    if options.list is not None:
        below = tuple(path.rstrip("/") for path in options.list) or ("",)
        print("\n".join(str(each) for each in findings if each.path.startswith(below)))
        return 0
    counts = counts_of(findings)
    most = json.loads(COUNTS.read_text()) if COUNTS.exists() else counts
    over = risen(counts, most)
    for package, kind in over:
        limit = most.get(package, {}).get(kind, 0)
        print(f"{package}: {counts[package][kind]} findings of kind {kind!r}, tests/prose/counts.json allows {limit}")
        print("\n".join(f"  {each}" for each in findings if (each.package, each.kind) == (package, kind)))
    if over:
        print("Rewrite the new ones as whole sentences about named things: docs/contributing.md, section Prose.")
        return 1
    if options.update:
        COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    print(f"prose: {sum(sum(kinds.values()) for kinds in counts.values())} findings, none above its limit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
