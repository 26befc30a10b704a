"""Contents of each image as CycloneDX: `make sbom` writes images/sbom/ from the build files and the locks.

    image     its base image            Containerfile: ARG, or --base NAME=IMAGE@sha256:… of a release
              Debian packages           its `apt-get install`: only names, because versions are those of the build day
              shoal and its wheels      the role's lock: version, and the sha256 of each file that may be installed

The same inputs give the same bytes: there is no timestamp, and the serial number is a hash of the content. The contents
of a base image are not listed; its publisher lists them. Licenses come from the metadata of installed packages. A pin
that is not installed here keeps its license of the last list; without either, the command fails.
"""

import argparse
import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import License, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from requirements.pins import LOCKS, PROJECT, Pin, pins

BUILD_FILES = (PROJECT / "images" / "Containerfile", PROJECT / "images" / "Containerfile.engine")
FOLDER = PROJECT / "images" / "sbom"
MACHINES = ("x86_64", "aarch64")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "sbom.shoal.dev")
_LONGEST_NAME = 60  # characters; a longer entry is the license's text, not its name
Licenses = Mapping[str, tuple[str, ...]]  # by name==version: SPDX expressions, or names


class Unknown(Exception):
    """A license or a line of a build file that cannot be determined; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Image:
    """A target of a build file, with the parts that determine its contents."""

    name: str
    base: str  # base image of the build argument, or else the default
    default: str  # default base image; its tag has the version of Python
    debian: tuple[str, ...]
    lock: Path | None  # None means that nothing is installed from a lock


def images(file: Path, bases: Mapping[str, str]) -> Iterator[Image]:
    """Yield every target that is no intermediate stage. `bases` replaces the build arguments' defaults."""
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#")).replace("\\\n", " ")
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    stages = {
        name: (base, body)
        for base, name, body in re.findall(r"^FROM (\S+) AS (\S+)$(.*?)(?=^FROM|\Z)", text, re.M | re.S)
    }
    used = {base for base, _ in stages.values()} | set(re.findall(r"--from=(\S+)", text))
    for target in stages.keys() - used:
        bodies, base = [], target
        while base in stages:
            base, body = stages[base]
            bodies.append(body)
        whole = "\n".join(bodies)
        copied = "\n".join(stages[name][1] for name in re.findall(r"--from=(\S+)", whole))
        locks = re.findall(r"-r /requirements/(\w+)\.txt", copied)
        debian = [word for line in re.findall(r"apt-get install ([^&|;\n]+)", whole) for word in line.split()]
        argument = base.strip("${}")
        yield Image(
            target,
            bases.get(argument, defaults[argument]),
            defaults[argument],
            tuple(sorted(word for word in debian if not word.startswith("-"))),
            LOCKS / f"{locks[0]}.txt" if locks else None,
        )


def held(image: Image) -> list[Pin]:
    """Return the pins that the image's Python installs, on either machine."""
    if image.lock is None:
        return []
    environments = [_environment(image.default, machine) for machine in MACHINES]
    return [pin for pin in pins(image.lock) if any(map(pin.is_for, environments))]


def document(image: Image, licenses: Licenses) -> str:
    """Return the image's list as JSON, with a final newline."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    root = Component(
        name=f"shoal/{image.name}", version=project["version"], type=ComponentType.CONTAINER, bom_ref="image"
    )
    components = [_base(image.base), *map(_debian, image.debian)]
    if image.lock is not None:
        own = Component(
            name=project["name"], version=project["version"], type=ComponentType.APPLICATION, bom_ref="shoal"
        )
        own.licenses = (LicenseFactory().make_from_string(project["license"]),)
        components += [own, *(_wheel(pin, licenses) for pin in held(image))]
    refs = [component.bom_ref for component in components]
    bom = Bom(
        metadata=BomMetaData(component=root),
        components=components,
        dependencies=[Dependency(root.bom_ref, [Dependency(ref) for ref in refs])],
    )
    written: dict[str, object] = json.loads(_json(bom))
    written["metadata"].pop("timestamp")  # type: ignore[attr-defined]
    del written["serialNumber"]
    written["serialNumber"] = uuid.uuid5(_NAMESPACE, json.dumps(written, sort_keys=True)).urn
    return json.dumps(written, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def known_licenses(image: Image, before: str | None) -> Licenses:
    """Return the license of every pin of the image: as installed here, or else from the list `before`."""
    earlier = _listed(before) if before is not None else {}
    found = {}
    for pin in held(image):
        key = f"{pin.name}=={pin.version}"
        installed = _installed(pin)
        if installed is None and key not in earlier:
            raise Unknown(f"{key} is not installed here, and no list has its license: install requirements/dev.txt")
        found[key] = installed if installed is not None else earlier[key]
    return found


def _installed(pin: Pin) -> tuple[str, ...] | None:
    try:
        metadata = importlib.metadata.metadata(pin.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if metadata["Version"] != str(pin.version):
        return None
    prefix = "License :: OSI Approved :: "
    classifiers = metadata.get_all("Classifier") or ()
    named = tuple(sorted(each.removeprefix(prefix) for each in classifiers if each.startswith(prefix)))
    for stated in (*(metadata.get_all("License-Expression") or ()), *(metadata.get_all("License") or ())):
        is_short = len(stated) <= _LONGEST_NAME and "\n" not in stated
        if is_short and (not named or _is_spdx(stated.strip())):
            return (stated.strip(),)
    return named


def _is_spdx(text: str) -> bool:
    made = LicenseFactory().make_from_string(text)
    return isinstance(made, LicenseExpression) or made.id is not None


def _listed(before: str) -> dict[str, tuple[str, ...]]:
    found = {}
    for component in json.loads(before)["components"]:
        if component.get("purl", "").startswith("pkg:pypi/"):
            said = component.get("licenses", ())
            names = (each.get("expression") or each["license"].get("id") or each["license"]["name"] for each in said)
            found[f"{component['name']}=={component['version']}"] = tuple(sorted(names))
    return found


def _wheel(pin: Pin, licenses: Licenses) -> Component:
    said = licenses[f"{pin.name}=={pin.version}"]
    make = LicenseFactory()
    several: list[License] = (
        [make.make_from_string(said[0])] if len(said) == 1 else [make.make_with_name(each) for each in said]
    )
    purl = PackageURL("pypi", None, pin.name, str(pin.version))
    return Component(
        name=pin.name,
        version=str(pin.version),
        purl=purl,
        bom_ref=str(purl),
        licenses=several,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in pin.sha256],
    )


def _debian(name: str) -> Component:
    purl = PackageURL("deb", "debian", name)
    return Component(
        name=name, purl=purl, bom_ref=str(purl), properties=[Property(name="shoal:version", value="of the build day")]
    )


def _base(image: str) -> Component:
    name, _, digest = image.partition("@")
    host, _, rest = name.partition("/")
    path, _, tag = rest.partition(":")
    qualifiers = {"repository_url": f"{host}/{path}"} | ({"tag": tag} if tag else {})
    leaf = path.rpartition("/")[2]
    purl = PackageURL("oci", None, leaf, digest or None, qualifiers)
    return Component(
        name=f"{host}/{path}",
        version=digest or tag,
        type=ComponentType.CONTAINER,
        purl=purl,
        bom_ref="base",
        properties=[Property(name="shoal:contents", value="not listed here: see the list of its publisher")],
    )


def _environment(base: str, machine: str) -> dict[str, str]:
    match = re.search(r"/python:((\d+\.\d+)\.\d+)", base)
    if match is None:
        raise Unknown(f"{base}: its tag has no version of Python, so the pins that it installs are unknown")
    full, minor = match[1], match[2]
    names = {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    system = {"os_name": "posix", "platform_system": "Linux", "sys_platform": "linux", "platform_machine": machine}
    return {**names, **system, "python_full_version": full, "python_version": minor, "extra": ""}


def _json(bom: Bom) -> str:
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make sbom", description="Write each image's contents as CycloneDX JSON.")
    parser.add_argument(
        "--base", action="append", default=[], metavar="ARG=IMAGE", help="base image to use for a build argument"
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    chosen = parser.parse_args(arguments)
    bases = dict(each.split("=", 1) for each in chosen.base)
    chosen.out.mkdir(exist_ok=True)
    for image in sorted((image for file in BUILD_FILES for image in images(file, bases)), key=lambda each: each.name):
        last = FOLDER / f"{image.name}.cdx.json"
        try:
            licenses = known_licenses(image, last.read_text() if last.is_file() else None)
        except Unknown as error:
            print(error, file=sys.stderr)
            return 1
        text = document(image, licenses)
        (chosen.out / last.name).write_text(text)
        print(f"{image.name}: {len(held(image))} wheels, {len(image.debian)} of Debian's packages, on {image.base}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
