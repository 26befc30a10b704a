"""The loader turns files into objects with their places, and rejects or skips whole files and documents."""

import difflib
from pathlib import Path

import pytest

from functions.api import yaml_parse
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.tenant import Tenant
from functions.api.loader import load_directory
from functions.api.problems import MAX_PROBLEMS, ConfigInvalid, near_miss
from tests.api.sources import FILES, HEX, MODELS, POOLS, TENANTS, M, P, Q, T, demo_files, edited, load, problems_of

KEYS_OF_GLOBEX = f'    - {{id: prod, hmacSha256: "{HEX}"}}\n'


def test_sound_files_become_objects_with_their_places() -> None:
    loaded = load(FILES)
    assert [(it.source, it.value.metadata.name) for it in loaded.objects_of(Tenant)] == [
        (f"{T}:1", "acme"),
        (f"{T}:15", "globex"),
    ]
    assert [it.value.spec.id for it in loaded.objects_of(Model)] == ["smollm2-135m", "acme/support-bot"]
    (pool,) = loaded.objects_of(InferenceService)
    assert (pool.value.pool, pool.value.context_window_tokens, pool.value.replica_bounds) == (
        "smollm2-135m",
        2048,
        (2, 4),
    )
    assert loaded.ignored == ()


def test_all_problems_of_all_files_come_together() -> None:
    files = edited(T, "tier: enterprise", "tier: 8") | {M: MODELS.replace("type: lora", "type: qlora"), P: POOLS + "]"}
    assert [problem.place.file for problem in problems_of(files)] == sorted([T, M, P])


def test_a_broken_tenant_does_not_make_its_models_wrong() -> None:
    (problem,) = problems_of(edited(T, "tier: enterprise", "tier: 8"))
    assert problem.key_path == "spec.tier"


def test_two_pools_of_one_name_are_refused() -> None:
    other = POOLS.replace("name: smollm\n", "name: other\n")
    (problem,) = problems_of({**FILES, "inferenceservices/z.yaml": other})
    assert str(problem).startswith("inferenceservices/z.yaml:5:28: ")
    assert f"is already served by {P}:1" in problem.message


def test_the_same_object_in_two_files_is_refused() -> None:
    (problem, *_) = problems_of({**FILES, "registry/more.yaml": MODELS.split("---\n", maxsplit=1)[0]})
    assert str(problem).startswith("registry/more.yaml:3:18: metadata.name: ")
    assert f"first at {M}:1" in problem.message


def test_what_is_not_ours_is_passed_over_and_named() -> None:
    runtime = "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: vllm}\n"
    data = "examples: [{ask: hello, answer: hi}]\n"
    unlabelled = POOLS.replace("  labels: {shoal.dev/pool: smollm2-135m}\n", "").replace("name: smollm\n", "name: x\n")
    loaded = load({**FILES, "a.yaml": runtime, "b.yaml": data, "c.yaml": unlabelled})
    assert [str(it) for it in loaded.ignored] == [
        "a.yaml:1:1: serving.kserve.io/v1alpha1 ServingRuntime is not one of shoal's kinds",
        "b.yaml:1:1: no apiVersion and no kind: not an object",
        "c.yaml:1:1: an InferenceService without the label shoal.dev/pool: no pool",
    ]


def test_kserves_own_keys_are_kserves_business() -> None:
    loaded = load(
        edited(P, "    minReplicas: 2", "    minReplicas: 2\n    canaryTrafficPercent: 10\n    whatEver: {a: [1]}")
    )
    assert loaded.objects_of(InferenceService)[0].value.spec.predictor.min_replicas == 2


def test_anchors_may_be_used_within_a_document() -> None:
    loaded = load(edited(T, "scopes: [inference]", "scopes: [&i inference, 'models:read', *i]"))
    assert loaded.objects_of(Tenant)[0].value.spec.keys[0].scopes == ("inference", "models:read", "inference")


def test_a_document_that_is_a_list_is_no_object() -> None:
    (problem,) = problems_of({"a.yaml": "- 1\n- 2\n"})
    assert str(problem) == "a.yaml:1:1: found a list; allowed: an object with apiVersion and kind"


def test_a_lone_surrogate_is_refused_not_raised() -> None:
    assert problems_of(edited(T, "tier: enterprise", 'tier: "\\ud800"'))


def test_folders_are_read_in_order_hidden_files_left_out(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "policies" / ".hidden.yaml").write_text("[")
    (tmp_path / "policies" / "notes.txt").write_text("[")
    (tmp_path / "policies" / "folder.yaml").mkdir()
    loaded = load_directory([tmp_path], relative_to=tmp_path)
    assert [it.place.file for it in loaded.objects] == [P, *[Q] * 6, T, T, M, M]


def test_a_missing_folder_is_a_problem_not_an_empty_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="no such file or folder"):
        load_directory([tmp_path / "nowhere"])


def test_the_projects_own_files_are_sound() -> None:
    loaded = load(demo_files())
    assert {it.value.metadata.name for it in loaded.objects_of(Tenant)} == {"acme", "globex"}
    assert {it.value.spec.id: it.value.spec.channels["stable"] for it in loaded.objects_of(Model)} == {
        "smollm2-135m": "v1", "acme/support-bot": "v1", "acme/pirate": "v1", "globex/haiku": "v1",
    }  # fmt: skip


def test_problems_without_number_are_told_up_to_a_bound() -> None:
    """Locating a problem takes a millisecond; the removal of one tier with 50,000 tenants must not take a minute."""
    tenants = "".join(
        f"---\napiVersion: shoal.dev/v1alpha1\nkind: Tenant\nmetadata: {{name: t{number}}}\nspec: {{tier: gone}}\n"
        for number in range(MAX_PROBLEMS + 500)
    )
    found = problems_of({**FILES, "policies/zz.yaml": tenants})
    assert len(found) == MAX_PROBLEMS
    assert all("there is no such QuotaPolicy" in problem.message for problem in found)


def test_many_problems_of_one_large_document_are_placed_at_the_cost_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = yaml_parse.parse_text

    def counted(file: str, text: str, first_line: int = 1) -> yaml_parse.Parsed:
        parsed.append(file)
        return parse(file, text, first_line)

    monkeypatch.setattr(yaml_parse, "parse_text", counted)
    keys = "".join(f'    - {{id: same, hmacSha256: "{HEX}"}}\n' for _ in range(100))
    problems = problems_of({"many.yaml": TENANTS.split("---\n")[1].replace(KEYS_OF_GLOBEX, keys)})
    assert len([problem for problem in problems if "is already used by" in problem.message]) == 99
    assert len(parsed) == 1


def test_undeclared_name_is_compared_with_few_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    close = difflib.get_close_matches

    def counted(word: str, names: list[str], n: int = 3, cutoff: float = 0.6) -> list[str]:
        compared.append(len(names))
        return close(word, names, n, cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    names = [f"tenant-{number:05d}" for number in range(5000)]
    assert near_miss("tenant-01700x", names) == '; did you mean "tenant-01700"?'
    assert max(compared) <= 200


def test_files_after_too_many_problems_are_not_read() -> None:
    broken = "---\nkind: 1\n" * (MAX_PROBLEMS + 1)
    found = problems_of({"a.yaml": broken, "b.yaml": "kind: ["})
    assert {problem.place.file for problem in found} == {"a.yaml"}
    assert any("later files were not read" in problem.message for problem in found)
