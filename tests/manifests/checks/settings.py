"""Check the environment of shoal's processes against their settings classes: no variable is unknown or missing.

The settings are built from the environment of the pod, with what the kubelet fills in (fields,
ConfigMaps) filled in here, so that a value of the wrong form is found as well.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from functions.gateway.settings import GatewaySettings
from functions.registry.settings import RegistrySettings
from functions.replica.settings import AdapterCacheSettings, NodeFetchSettings, ReplicaSettings
from tests.manifests.containerfiles import read
from tests.manifests.rendering import PROJECT, Rendering
from tests.manifests.workloads import Workload, workloads

_POD_FIELDS = {
    "metadata.name": "smollm2-135m-predictor-6d4cf56db6-x2x7q",
    "status.podIP": "10.1.2.3",
    "spec.nodeName": "node-1",
}


def settings_classes() -> Mapping[str, tuple[type[BaseSettings], ...]]:
    """Return the settings classes by the module that a container starts."""
    controller = importlib.import_module("functions.controller.kubernetes.run.settings")
    return {
        "functions.gateway": (GatewaySettings,),
        "functions.registry": (RegistrySettings,),
        "functions.replica": (ReplicaSettings,),
        "functions.replica.adapter_cache": (AdapterCacheSettings,),
        "functions.replica.node_fetch": (NodeFetchSettings,),
        "functions.controller.kubernetes": (controller.KubernetesSettings,),
    }


def settings_findings(rendering: Rendering) -> Iterator[str]:
    for workload in workloads(rendering):
        for container in workload.containers:
            module = module_of(container)
            where = f"{workload.name}: {container['name']}"
            environment = environment_of(container, workload, rendering)
            names = [name for name in environment if name.startswith("SHOAL_")]
            if module is None:
                yield from (f"{where} sets {name}, which nothing there reads" for name in names)
                continue
            known = {name for settings in settings_classes()[module] for name in variables(settings)}
            yield from (
                f"{where}: {name} is of IPv4 alone; `::` is of both families"
                for name, value in environment.items()
                if name.endswith("_HOST") and value == "0.0.0.0"
            )
            yield from (f"{where} sets {name}, which is no setting of {module}" for name in names if name not in known)
            yield from (f"{where}: {problem}" for problem in _refusals(module, environment))


def module_of(container: dict[str, Any]) -> str | None:
    """Return shoal's module that the container starts: from its command, else from its image's entrypoint."""
    words = container.get("command") or _entrypoint(container.get("image", ""))
    named = [word for word in words if word.startswith("functions.")]
    return named[0] if named else None


def variables(settings: type[BaseSettings]) -> dict[str, bool]:
    """Return the variables of a settings class; the value is True for a required one."""
    prefix = settings.model_config["env_prefix"]
    return {f"{prefix}{name}".upper(): field.is_required() for name, field in settings.model_fields.items()}


def environment_of(container: dict[str, Any], workload: Workload, rendering: Rendering) -> dict[str, str]:
    environment = {}
    for entry in container.get("env", []):
        environment[entry["name"]] = entry["value"] if "value" in entry else _source(entry, workload, rendering)
    return environment


def make(settings: type[BaseSettings], environment: Mapping[str, str]) -> BaseSettings:
    """Return the settings as the process would read them, without this process's own environment."""
    with mock.patch.dict(os.environ, dict(environment), clear=True):
        return settings()


def _refusals(module: str, environment: Mapping[str, str]) -> Iterator[str]:
    for settings in settings_classes()[module]:
        try:
            make(settings, environment)
        except ValidationError as error:
            for each in error.errors():
                name = f"{settings.model_config['env_prefix']}{each['loc'][0] if each['loc'] else ''}".upper()
                yield f"{name}: {each['msg']}"


def _source(entry: dict[str, Any], workload: Workload, rendering: Rendering) -> str:
    source = entry["valueFrom"]
    if "configMapKeyRef" in source:
        wanted = source["configMapKeyRef"]
        for document in rendering.of("ConfigMap"):
            if (document["metadata"]["name"], document["metadata"]["namespace"]) == (
                wanted["name"],
                workload.namespace,
            ):
                return str(document["data"].get(wanted["key"], ""))
        return ""  # `references` reports it
    path = source["fieldRef"]["fieldPath"]
    for field, values in (("metadata.labels", workload.labels), ("metadata.annotations", workload.annotations)):
        if path.startswith(field):
            return values.get(path.removeprefix(f"{field}['").removesuffix("']"), "")
    return _POD_FIELDS[path]


def _entrypoint(image: str) -> list[str]:
    target = image.rpartition("/")[2].partition(":")[0]
    stages = read(PROJECT / "images" / "Containerfile").stages
    return stages[target].entrypoint if target in stages and "/shoal/" in image else []
