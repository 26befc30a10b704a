"""Which references may move, and how mistakes are reported to the pusher."""

import pytest

from functions.api.problems import Problem, SourceLocation
from functions.controller.gitops.review import MAX_UPDATES, ReferenceUpdate, judge_references
from functions.controller.gitops.words import SHOWN_PROBLEMS, problem_lines

A, B, NONE = "a" * 40, "b" * 40, "0" * 40


def judged(
    *updates: ReferenceUpdate, options: tuple[str, ...] = (), ancestor: bool = True
) -> tuple[tuple[str, ...], str | None]:
    found = judge_references(updates, frozenset(options), "main", lambda older, newer: ancestor)
    return found.refusals, found.commit


def test_fast_forward_of_the_branch_is_the_commit_to_deploy() -> None:
    assert judged(ReferenceUpdate(A, B, "refs/heads/main")) == ((), B)
    assert judged(ReferenceUpdate(NONE, B, "refs/heads/main")) == ((), B)


def test_branch_deletion_is_always_refused() -> None:
    (words,), commit = judged(ReferenceUpdate(A, NONE, "refs/heads/main"), options=("allow-rewrite", "allow-empty"))
    assert "cannot be deleted" in words
    assert commit is None


def test_history_rewrite_needs_a_push_option() -> None:
    update = ReferenceUpdate(A, B, "refs/heads/main")
    (words,), commit = judged(update, ancestor=False)
    assert "-o allow-rewrite" in words
    assert commit is None
    assert judged(update, options=("allow-rewrite",), ancestor=False) == ((), B)


def test_other_branches_and_tags_are_kept_and_not_deployed() -> None:
    updates = (
        ReferenceUpdate(NONE, A, "refs/heads/feature/x"),
        ReferenceUpdate(A, NONE, "refs/heads/old"),
        ReferenceUpdate(NONE, A, "refs/tags/v1"),
    )
    found = judge_references(updates, frozenset(), "main", lambda older, newer: True)
    assert found.commit is None
    assert found.refusals == ()
    assert [note.split()[0] for note in found.notes] == ["feature/x", "v1"]


@pytest.mark.parametrize("reference", ["refs/shoal/last-good", "refs/notes/x", "HEAD", "refs/heads"])
def test_other_references_are_refused(reference: str) -> None:
    refusals, _ = judged(ReferenceUpdate(A, B, reference))
    assert len(refusals) == 1


def test_one_refusal_keeps_the_branch_where_it_is() -> None:
    refusals, commit = judged(ReferenceUpdate(A, B, "refs/heads/main"), ReferenceUpdate(A, B, "refs/shoal/last-good"))
    assert refusals
    assert commit is None


def test_a_reference_that_is_moved_twice_is_refused() -> None:
    """Otherwise only the second of the two moves would be judged."""
    refusals, commit = judged(ReferenceUpdate(A, B, "refs/heads/main"), ReferenceUpdate(NONE, A, "refs/heads/main"))
    assert (len(refusals), commit) == (1, None)


def test_unknown_push_option_is_refused_with_the_valid_ones() -> None:
    (words,), _ = judged(ReferenceUpdate(A, B, "refs/heads/main"), options=("allow-emtpy",))
    assert "known: allow-rewrite, allow-empty" in words


def test_a_flood_of_references_is_refused_in_one_line() -> None:
    updates = [ReferenceUpdate(NONE, A, f"refs/heads/{number}") for number in range(MAX_UPDATES + 1)]
    assert len(judged(*updates)[0]) == 1


def lines(*problems: Problem, **texts: bytes) -> list[str]:
    return problem_lines(problems, {name.replace("_", "."): text for name, text in texts.items()})


def test_a_problem_is_shown_with_its_line_and_a_caret() -> None:
    assert lines(Problem(SourceLocation("a.yaml", 2, 3), "spec.teir", "unknown key"), a_yaml=b"spec:\n  teir: x\n") == [
        "a.yaml:2:3: spec.teir: unknown key",
        "     2 |   teir: x",
        "       |   ^",
    ]


def test_a_problem_without_a_line_is_shown_alone() -> None:
    assert lines(Problem(SourceLocation("a.yaml"), "", "is a symbolic link")) == ["a.yaml: is a symbolic link"]
    assert len(lines(Problem(SourceLocation("a.yaml", 9, 1), "", "x"), a_yaml=b"one\n")) == 1


def test_long_line_is_cut_around_the_problem() -> None:
    _, excerpt, caret = lines(
        Problem(SourceLocation("a.yaml", 1, 5000), "", "x"), a_yaml=b"a" * 4999 + b"!" + b"b" * 5000
    )
    assert len(excerpt) < 200
    assert excerpt[caret.index("^")] == "!"


def test_many_problems_are_cut_off_with_a_count() -> None:
    shown = lines(*(Problem(SourceLocation("a.yaml"), "", str(number)) for number in range(SHOWN_PROBLEMS + 7)))
    assert len(shown) == SHOWN_PROBLEMS + 1
    assert shown[-1] == "… and 7 more"


def test_terminal_control_sequences_are_removed() -> None:
    shown = lines(
        Problem(SourceLocation("a.yaml", 1, 1), "x", "found \x1b[31m\r\n"), a_yaml=b"\x1b]0;title\x07 \xff\x9b"
    )
    assert all(line.isprintable() for line in shown)
