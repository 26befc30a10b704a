"""`python -m functions.controller.gitops.review_alone <repository>`: judge a push without a controller.

It reads the order on standard input and answers as the control channel would. The local target's checks use defaults,
because no controller can say what was configured. A push that removes everything needs the controller, which alone
records that this is intended.
"""

import json
import sys
from pathlib import Path

from functions.api.loader import Loaded
from functions.api.problems import Problem
from functions.controller.gitops.git import GitFailed
from functions.controller.gitops.review import (
    ALLOW_EMPTY,
    PushMalformed,
    PushVerdict,
    Reviewer,
    changes_in_words,
    push_from,
    verdict_document,
)
from functions.controller.gitops.source import GitSource
from functions.controller.local.pools import PoolUnusable, Target, unusable_problems

ORDER_MAX_BYTES = 4 * 1024 * 1024


def judge(repository: Path, document: bytes) -> PushVerdict:
    source = GitSource(repository)
    try:
        push = push_from(json.loads(document))
        if ALLOW_EMPTY in push.options:
            return PushVerdict(False, (f"refused: -o {ALLOW_EMPTY} needs the running controller: `shoal up` first",))
        return Reviewer(source, _check, _described).review(push, source.read_tip().loaded)
    except (PushMalformed, GitFailed, ValueError) as error:
        return PushVerdict(False, (f"refused: the push could not be judged: {error}",))


def main() -> int:
    verdict = judge(Path(sys.argv[1]), sys.stdin.buffer.read(ORDER_MAX_BYTES))
    sys.stdout.write(json.dumps(verdict_document(verdict)))
    return 0


def _check(loaded: Loaded) -> tuple[Problem, ...]:
    return unusable_problems(loaded, Target())


def _described(present: Loaded | None, candidate: Loaded) -> tuple[str, ...]:
    """Describe the changes against the branch's tip, which the next controller would run, or say why that is impossible
    if the tip cannot run on this machine."""
    try:
        return changes_in_words(present, candidate)
    except PoolUnusable as error:  # the tip cannot run here, for example because it was pushed for another machine
        return (f"the changes cannot be described: {error}",)


if __name__ == "__main__":
    sys.exit(main())
