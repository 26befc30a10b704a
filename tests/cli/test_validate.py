"""`shoal validate` and `shoal schema`: output and exit status."""

import json
import os
import subprocess
import sys
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from functions.cli.main import app
from functions.cli.refused import CommandRefused
from functions.cli.validate_report import EXCERPT_MAX_CHARS, excerpt
from tests.api.sources import FILES, POOLS, P, Q, T, edited
from tests.controller.unobeyed.test_declared import EVENTS, service

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: bytes
    stderr: bytes


def shoal(folder: Path, *arguments: str, stdin: bytes = b"", **variables: str | None) -> Answer:
    """Run the command in this process; errors are printed as by `main`."""
    with chdir(folder):
        result = CliRunner().invoke(app, arguments, input=stdin, env={"SHOAL_CRDS_DIR": None, **variables})
    refused = f"{result.exception}".encode() if isinstance(result.exception, CommandRefused) else b""
    assert refused or result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Answer(result.exit_code, result.stdout_bytes, result.stderr_bytes + refused)


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_sound_folder_is_summed_up(tmp_path: Path) -> None:
    answer = shoal(written(tmp_path, FILES), "validate")
    assert answer.returncode == 0, answer.stderr
    text = answer.stdout.decode()
    assert "✓ 11 objects in 4 files: " in text
    assert "2 QuotaPolicies" in text
    assert "2 Tenants" in text


def test_a_problem_is_shown_under_its_line_with_what_would_be_right(tmp_path: Path) -> None:
    files = edited(Q, "p99_latency > 2x", "p99_latency > twice")
    answer = shoal(written(tmp_path, files), "validate")
    assert answer.returncode == 1
    head, line, caret, says, *_ = answer.stdout.decode().splitlines()
    assert head.startswith("policies/policies.yaml:37:79  ")
    assert head.endswith("spec.stages[0].autoHalt[1]")
    assert line.index("twice") == caret.index("^")
    assert 'found "twice"; allowed here: a number' in says
    assert "✗ 1 problem in 1 file" in answer.stdout.decode()


def test_json_says_the_same_to_programs(tmp_path: Path) -> None:
    answer = shoal(written(tmp_path, edited(T, "tier: enterprise", "teir: enterprise")), "validate", "-o", "json")
    assert answer.returncode == 1
    told = json.loads(answer.stdout)
    assert told["valid"] is False
    (problem,) = told["problems"]
    assert (problem["file"], problem["line"], problem["column"], problem["key_path"]) == (T, 5, 3, "spec.teir")
    assert problem["excerpt"] == "  teir: enterprise"
    good = shoal(written(tmp_path, FILES), "validate", "-o", "json")
    assert good.returncode == 0
    assert json.loads(good.stdout)["objects"]["Tenant"] == 2


def test_what_cannot_be_obeyed_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    folder = written(tmp_path, {"a.yaml": "---\n".join((service("a", "--no-enable-prefix-caching"), EVENTS))})
    answer = shoal(folder, "validate", "a.yaml")
    assert answer.returncode == 0
    head, line, caret, says, *rest = answer.stdout.decode().splitlines()
    assert head == "a.yaml:9:39  spec.prefix.source"
    assert line.index("events") == caret.index("^")
    assert "found events, but a is started with --no-enable-prefix-caching at a.yaml:1" in says
    assert "! 1 warning: valid, but it cannot be honoured" in rest
    assert any(said.startswith("✓ 2 objects in 1 file") for said in rest)
    told = json.loads(shoal(folder, "validate", "a.yaml", "-o", "json").stdout)
    assert told["valid"] is True
    (warning,) = told["warnings"]
    assert (warning["reason"], warning["line"]) == ("PrefixCachingOff", 9)


@pytest.mark.parametrize("folder", ["", "/fleet"])
def test_the_projects_own_configurations_can_be_obeyed(folder: str) -> None:
    paths = [f"{name}{folder}" for name in ("inferenceservices", "policies", "registry")] if folder else []
    told = json.loads(shoal(PROJECT, "validate", *paths, "-o", "json").stdout)
    assert (told["valid"], told["warnings"]) == (True, [])


def test_standard_input_is_a_file_like_others(tmp_path: Path) -> None:
    everything = "---\n".join(FILES.values())
    assert shoal(tmp_path, "validate", "-", stdin=everything.encode()).returncode == 0
    broken = shoal(tmp_path, "validate", "-", stdin=everything.replace("tier: standard", "tier: 8").encode())
    assert broken.returncode == 1
    assert b"stdin:19:9  spec.tier" in broken.stdout


def test_as_a_process_it_ends_with_its_status_and_prints_to_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "functions.cli.main", "validate", "-"]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    for text, status in (("---\n".join(FILES.values()), 0), ("kind: [", 1)):
        answer = subprocess.run(
            command, cwd=tmp_path, env=environment, input=text, text=True, capture_output=True, timeout=120, check=False
        )
        assert (answer.returncode, answer.stderr) == (status, "")
        assert answer.stdout


def test_only_the_top_of_each_folder_is_taken_without_a_path(tmp_path: Path) -> None:
    files = {**FILES, "policies/fleet/broken.yaml": "kind: ["}
    assert shoal(written(tmp_path, files), "validate").returncode == 0
    assert shoal(tmp_path, "validate", "policies").returncode == 1


@pytest.mark.parametrize("arguments", [(), ("nowhere.yaml",), ("empty",)])
def test_nothing_to_judge_is_not_success(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    answer = shoal(tmp_path, "validate", *arguments)
    assert answer.returncode == 1
    assert answer.stdout or answer.stderr


def test_a_terminal_never_gets_control_characters_out_of_a_file(tmp_path: Path) -> None:
    answer = shoal(tmp_path, "validate", "-", stdin=b"kind: \x1b]0;owned\x07\n")
    assert answer.returncode == 1
    assert b"\x1b" not in answer.stdout
    assert b"\x07" not in answer.stdout


def test_a_long_line_is_cut_around_the_caret() -> None:
    line = "a: [" + "x, " * 200 + "HERE, " + "y, " * 200 + "]"
    cut = excerpt(line.encode(), 1, line.index("HERE") + 1)
    assert cut is not None
    assert cut.line[cut.caret :].startswith("HERE")
    assert len(cut.line) <= EXCERPT_MAX_CHARS + 2
    assert excerpt(b"a\n", 7, 1) is None
    assert excerpt(None, 1, 1) is None


CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: inferenceservices.serving.kserve.io}
spec:
  versions:
    - name: v1beta1
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              properties:
                predictor:
                  type: object
                  required: [timeout]
                  properties:
                    timeout: {type: integer}
                    minReplicas: {type: integer}
                    maxReplicas: {type: integer}
                    surge: {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true}
                    model: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {args: {type: array}}}
"""


def with_crd(folder: Path, service: str) -> Answer:
    written(folder, {**FILES, P: service, "crds/serving.kserve.io_inferenceservices.yaml": CRD})
    return shoal(folder, "validate", "--crds", "crds")


def test_kserves_schema_judges_what_the_loader_does_not_read(tmp_path: Path) -> None:
    sound = POOLS.replace("    minReplicas: 2\n", "    minReplicas: 2\n    timeout: 60\n    surge: 10%\n")
    good = with_crd(tmp_path, sound)
    assert good.returncode == 0, good.stdout
    assert "InferenceServices agree with KServe's own schema" in good.stdout.decode()
    text = with_crd(tmp_path, sound.replace("timeout: 60", "timeot: 60\n    maxReplcas: 3")).stdout.decode()
    assert f"{P}:9:5  spec.predictor.timeot" in text
    assert 'unknown key for KServe; it would be dropped; did you mean "maxReplicas"?' in text
    assert "spec.predictor.timeout\n" in text
    assert "is required by KServe, but missing" in text
    wrong = with_crd(tmp_path, sound.replace("surge: 10%", "surge: [1]")).stdout.decode()
    assert "found a list; KServe's schema: integer or string" in wrong


def test_a_folder_without_kserves_definition_is_refused_in_words(tmp_path: Path) -> None:
    answer = shoal(written(tmp_path, FILES), "validate", SHOAL_CRDS_DIR=str(tmp_path))
    assert answer.returncode == 1
    assert b"cannot be read as KServe's CRD" in answer.stderr


def test_the_projects_examples_agree_with_kserve() -> None:
    folder = os.environ.get("SHOAL_CRDS_DIR", "")
    if not folder:
        pytest.skip(
            "SHOAL_CRDS_DIR is not set: it names a folder with KServe's CRDs as files such as "
            "serving.kserve.io_inferenceservices.yaml (config/crd/full/ of KServe's repository)"
        )
    fleet = [f"{folder}/fleet" for folder in ("inferenceservices", "policies", "registry")]
    for paths in ([], fleet):
        answer = shoal(PROJECT, "validate", *paths, "--crds", folder)
        assert answer.returncode == 0, answer.stdout


def test_the_fleet_is_sound_by_itself() -> None:
    answer = shoal(PROJECT, "validate", "inferenceservices/fleet", "policies/fleet", "registry/fleet", "-o", "json")
    assert answer.returncode == 0, answer.stdout
    objects = json.loads(answer.stdout)["objects"]
    assert set(objects) == {
        *("Tenant", "Model", "InferenceService"),
        *("QuotaPolicy", "RoutingPolicy", "AdmissionPolicy", "RolloutPolicy", "AutoscalingPolicy"),
    }


def test_schema_prints_json_for_editors_and_yaml_for_kubernetes(tmp_path: Path) -> None:
    editors = json.loads(shoal(tmp_path, "schema").stdout)
    assert editors["$schema"].startswith("http://json-schema.org/draft-07/")
    tenant = json.loads(shoal(tmp_path, "schema", "--kind", "Tenant").stdout)
    assert tenant["required"] == ["apiVersion", "kind", "metadata", "spec"]
    crds = list(yaml.safe_load_all(shoal(tmp_path, "schema", "--crd").stdout))
    assert len(crds) == 7
    (one,) = yaml.safe_load_all(shoal(tmp_path, "schema", "--crd", "--kind", "Model").stdout)
    assert one["metadata"]["name"] == "models.shoal.dev"


def test_schema_writes_a_file_for_each_definition(tmp_path: Path) -> None:
    assert shoal(tmp_path, "schema", "--crd", "--write", "made/crds").returncode == 0
    assert len(list((tmp_path / "made" / "crds").glob("shoal.dev_*.yaml"))) == 7


def test_schema_refuses_what_makes_no_sense_in_words(tmp_path: Path) -> None:
    unknown = shoal(tmp_path, "schema", "--kind", "Tenat")
    assert unknown.returncode == 1
    assert b'did you mean "Tenant"?' in unknown.stderr
    foreign = shoal(tmp_path, "schema", "--crd", "--kind", "InferenceService")
    assert foreign.returncode == 1
    assert b"there is no kind" in foreign.stderr
    assert shoal(tmp_path, "schema", "--write", "x").returncode == 1
