"""Lists of images' contents match the current build files and locks."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.version import Version

from requirements import sbom
from requirements.sbom import BUILD_FILES, FOLDER, Image, Unknown, document, held, images, known_licenses
from tests.manifests.containerfiles import read
from tests.manifests.test_images import ROLES
from tests.requirements.test_locks import REQUIREMENTS, pins

ALL = {image.name: image for file in BUILD_FILES for image in images(file, {})}
DIGEST = "sha256:" + "5" * 64


def listed(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.cdx.json").read_text())


def of_pypi(name: str) -> dict[str, Any]:
    components = listed(name)["components"]
    return {each["name"]: each for each in components if each.get("purl", "").startswith("pkg:pypi/")}


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_list_is_of_the_lock_as_it_is_now(name: str) -> None:
    before = (FOLDER / f"{name}.cdx.json").read_text()
    licenses = {
        f"{pin.name}=={pin.version}": sbom._listed(before).get(f"{pin.name}=={pin.version}", ())
        for pin in held(ALL[name])
    }
    assert document(ALL[name], licenses) == before, "a lock or a build file changed: run `make sbom`"
    assert document(ALL[name], known_licenses(ALL[name], before)) == before, "so did licenses: run `make sbom`"


@pytest.mark.parametrize(("target", "extra"), ROLES.items())
def test_every_wheel_has_version_purl_license_and_every_hash(target: str, extra: str) -> None:
    text = (REQUIREMENTS / f"{extra}.txt").read_text()
    expected = pins(REQUIREMENTS / f"{extra}.txt", "3.11", "x86_64")
    wheels = of_pypi(target)
    assert {name: each["version"] for name, each in wheels.items()} == expected
    for name, wheel in wheels.items():
        (entry,) = re.findall(
            rf"^{re.escape(name)}=={re.escape(wheel['version'])}[ \\;].*\n((?:    --hash.*\n)+)", text, re.M
        )
        assert {each["content"] for each in wheel["hashes"]} == set(re.findall(r"sha256:([0-9a-f]{64})", entry))
        assert wheel["purl"] == f"pkg:pypi/{name}@{wheel['version']}"
        assert wheel.get("licenses") or name == "sigstore-models", "its metadata names no license"


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_base_and_debians_packages_are_those_of_the_build_file(name: str) -> None:
    file = next(file for file in BUILD_FILES if name in read(file).stages)
    parsed, components = read(file), listed(name)["components"]
    (base,) = (each for each in components if each["bom-ref"] == "base")
    assert f"{base['name']}:{base['version']}" == parsed.image(name)
    installed = " ".join(run for stage in parsed.lineage(name) for run in stage.runs)
    debian = {each["name"] for each in components if each.get("purl", "").startswith("pkg:deb/")}
    assert debian == ({"git", "ca-certificates"} if "apt-get install" in installed else set())
    assert all(each in installed for each in debian)


def test_a_release_names_its_base_by_the_digest_that_it_was_given(tmp_path: Path) -> None:
    given = f"PYTHON_IMAGE=docker.io/library/python@{DIGEST}"
    assert sbom.main(["--base", given, "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "gateway.cdx.json").read_text())
    (base,) = (each for each in made["components"] if each["bom-ref"] == "base")
    assert (base["name"], base["version"]) == ("docker.io/library/python", DIGEST)
    assert DIGEST.replace(":", "%3A") in base["purl"] or DIGEST in base["purl"]
    others = (each for each in made["components"] if each["bom-ref"] != "base")
    assert list(others) == [each for each in listed("gateway")["components"] if each["bom-ref"] != "base"]
    assert made["serialNumber"] != listed("gateway")["serialNumber"]


def test_unknown_license_raises(tmp_path: Path) -> None:
    lock = tmp_path / "role.txt"
    lock.write_text(f"nobody-has-this==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    image = Image("role", "docker.io/library/python:3.11.13", "docker.io/library/python:3.11.13", (), lock)
    assert [pin.version for pin in held(image)] == [Version("1.0")]
    with pytest.raises(Unknown, match=r"nobody-has-this==1\.0 is not installed here"):
        known_licenses(image, None)


@pytest.mark.parametrize("name", sorted(ALL))
def test_list_is_valid_cyclonedx(name: str) -> None:
    valid = JsonStrictValidator(SchemaVersion.V1_6)
    assert valid.validate_str(json.dumps(listed(name))) is None
    assert valid.validate_str(json.dumps(listed(name) | {"bomFormat": "other"})) is not None
