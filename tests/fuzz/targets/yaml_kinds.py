"""YAML files of kinds: the result is objects, or problems with a position, and the same for a second read."""

from functions.api.file_result import judge_file
from functions.api.loader import load_texts
from functions.api.problems import ConfigInvalid
from tests.fuzz.inputs import grown

DICTIONARY = (
    "apiVersion: shoal.dev/v1alpha1\n",
    "kind: Tenant\n",
    "kind: QuotaPolicy\n",
    "kind: RoutingPolicy\n",
    "kind: RolloutPolicy\n",
    "kind: AutoscalingPolicy\n",
    "kind: AdmissionPolicy\n",
    "kind: Model\n",
    "metadata:\n  name: a\n",
    "spec:\n",
    "---\n",
    "&a [*a]",
    "<<: *a",
    "!!python/object",
    "? ",
    "|\n",
    ">-\n",
    "%YAML 1.2\n",
    "\ufeff",
    "{}",
    "0x1f",
    "2026-01-01",
    ".inf",
)
FILE = "a/file.yaml"


def check(data: bytes) -> None:
    data = grown(data)
    found = judge_file(FILE, data)
    assert found == judge_file(FILE, data)
    for problem in (*found.problems, *found.contradictions, *found.ignored):
        assert problem.place.file == FILE and str(problem)
    try:
        load_texts([(FILE, data)])
    except ConfigInvalid as invalid:
        assert invalid.problems
