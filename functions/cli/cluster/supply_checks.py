"""Checks of an installation's supply chain: images pinned by digest, facts of the base models. Pure.

A tag may move, so that two pods of one manifest run different images, and a restart may start an unwanted one. Only the
image registry and the pods that pulled an image know a tag's digest; a pod's `imageID` shows what runs.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath

from functions.artifacts.locations import weights_at
from functions.cli.cluster.access import Body, ClusterChoice
from functions.cli.cluster.facts import ClusterFacts
from functions.cli.cluster.finding import Check, DoctorFinding, Level, is_installed, name_of, unreadable

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")
_OTHERS = frozenset({"queue-proxy", "storage-initializer"})  # added to pods by Knative and KServe
_SHOWN = 10


def images(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    if facts.pods is None:
        yield unreadable("images", "pods")
        return
    running = _running(facts.pods)
    by_tag = {image: digests for image, digests in sorted(running.items()) if not _DIGEST.search(image)}
    for image, digests in list(by_tag.items())[:_SHOWN]:
        name = image.rpartition("/")[2].partition(":")[0]
        if len(digests) > 1:
            words = f"{image} is {len(digests)} images: pods run {', '.join(sorted(digests))}"
            yield DoctorFinding(f"image {name}", "fail", words, _pin("sha256:…"))
        else:
            (digest,) = digests
            words = f"{image} is named by a tag, which may move; it runs {digest or 'an unknown digest'}"
            yield DoctorFinding(f"image {name}", "warn", words, _pin(digest or "sha256:…"))
    if len(by_tag) > _SHOWN:
        yield DoctorFinding("more images", "warn", f"{len(by_tag) - _SHOWN} more are named by a tag")
    if running and not by_tag:
        yield DoctorFinding("images", "ok", f"all {len(running)} are named by their digest")


def base_facts(facts: ClusterFacts, choice: ClusterChoice) -> Iterator[DoctorFinding]:
    """Check that the registry has the facts of each declared base, against which it checks adapters."""
    registry = next((each for each in facts.services or () if name_of(each) == "registry"), None)
    if registry is None or not is_installed(facts, choice):
        return
    if facts.base_facts is None or facts.objects is None:
        yield unreadable("base facts", "ConfigMaps or Models")
        return
    folders = {each["spec"]["id"]: _folder(each) for each in facts.objects if _is_base(each)}
    keys = _mounted(registry)
    required = _env(registry).get("SHOAL_REGISTRY_BASE_FACTS_REQUIRED", "").lower() == "true"
    level: Level = "fail" if required else "warn"
    lost = "are refused" if required else "are not checked before an engine loads them"
    missing = {base: folder for base, folder in sorted(folders.items()) if keys.get(folder) not in facts.base_facts}
    for base, folder in list(missing.items())[:_SHOWN]:
        words = f"the registry has none: its adapters {lost}"
        yield DoctorFinding(f"facts of {base}", level, words, _facts_commands(choice, folder, keys, facts.base_facts))
    if folders and not missing:
        yield DoctorFinding("base facts", "ok", f"of all {len(folders)} bases")


SUPPLY_CHECKS: tuple[Check, ...] = (images, base_facts)


def _running(pods: tuple[Body, ...]) -> dict[str, set[str]]:
    """Return the digests that run for each image name of a pod; '' if no pod has pulled the image yet."""
    found: dict[str, set[str]] = defaultdict(set)
    for pod in pods:
        status = pod.get("status", {})
        if status.get("phase") in ("Succeeded", "Failed"):
            continue
        said = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        ids = {each["name"]: _DIGEST.search(each.get("imageID") or "") for each in said}
        for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"].get("containers", ())):
            if container["name"] not in _OTHERS:
                digest = ids.get(container["name"])
                found[container.get("image", "")].add(digest[0] if digest else "")
    return {image: digests - {""} or {""} for image, digests in found.items()}


def _pin(digest: str) -> str:
    return f"in images: of your overlay, replace the tag by digest: {digest}; then apply the overlay"


def _is_base(each: Body) -> bool:
    return bool(each["kind"] == "models" and each.get("spec", {}).get("type") == "base")


def _folder(model: Body) -> str:
    """Return the folder of a base's facts: `<name>@<version>` of pushed weights, its folder in the volume or its id."""
    uri = next((str(version["artifact"]) for version in model["spec"].get("versions", ())), "")
    if (weights := weights_at(uri)) is not None:
        return str(weights)
    _, _, folder = uri.removeprefix("pvc://").partition("/") if uri.startswith("pvc://") else ("", "", "")
    return folder or str(model["spec"]["id"])


def _mounted(registry: Body) -> dict[str, str]:
    """Return the folders of base facts in the registry's pods, each with its key in the ConfigMap."""
    volumes = registry["spec"].get("template", {}).get("spec", {}).get("volumes", ())
    mounted = [each["configMap"] for each in volumes if each.get("configMap", {}).get("name") == "base-facts"]
    return {str(PurePosixPath(item["path"]).parent): item["key"] for each in mounted for item in each.get("items", ())}


def _env(registry: Body) -> dict[str, str]:
    containers = registry["spec"].get("template", {}).get("spec", {}).get("containers", ())
    return {each["name"]: str(each.get("value", "")) for one in containers[:1] for each in one.get("env", ())}


def _facts_commands(choice: ClusterChoice, folder: str, keys: dict[str, str], there: frozenset[str]) -> str:
    key = keys.get(folder, folder.replace("/", ".").replace("@", "."))
    steps = []
    if folder not in keys:
        steps.append(f"add {{key: {key}, path: {folder}/shoal-base-facts.json}} to the registry's volume base-facts")
    if key not in there:
        make = f"kubectl -n {choice.system} create configmap base-facts --from-file={key}=facts.json"
        if there:  # keep the keys of other bases
            patch = f"kubectl -n {choice.system} patch configmap base-facts --patch-file /dev/stdin"
            make = f"{make} --dry-run=client -o json | {patch}"
        steps.append(f"on the machine with its weights: shoal base facts {folder} > facts.json; {make}")
    return "; ".join(steps)
