"""Every field of every entry is described, stored, sent and read; fields are found in the types, not listed by hand.

A field that names its entry is excluded: another name is another entry.
"""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from functions.api import snapshot as snapshots
from functions.api.declared import Declared
from functions.api.kinds.base import ShoalObject
from functions.api.kinds.catalogue import KINDS, AnyObject
from functions.api.kinds.inference_service import DeploymentStrategy, EnvVar, InferenceService, RollingUpdate
from functions.api.snapshot import Snapshot
from functions.api.snapshot_entries import SECTIONS
from functions.api.snapshot_index import indexed
from functions.controller.gitops.changes import describe
from functions.controller.kubernetes.run.last_good import LastGood
from tests.controller.variations import fields, varied, with_entry, with_split
from tests.controller.whole import Written, compiled, declared, whole, whole_snapshot

AT_REST = whole_snapshot()
ROLLING = with_split(AT_REST)
# Not declared: the controller adds these while a rollout is under way, and removes them afterwards.
OF_ROLLOUTS = {field for field in fields() if field.startswith("SplitEntry.")} | {"ModelEntry.splits"}


# Written fields without a snapshot entry: for people and tools, or with one allowed value.
NOT_COMPILED = {"ServedModel.storage_uri"}
# Fields of KServe's kind on how a pool's processes run: targets read them, gateways do not.
OF_PROCESSES = {"ServedModel.runtime", "ServedModel.env", "Predictor.deployment_strategy"}
OF_PROCESSES |= {
    f"{part.__name__}.{name}" for part in (EnvVar, DeploymentStrategy, RollingUpdate) for name in part.model_fields
}


def walk(start: Snapshot) -> Iterator[tuple[str, str, Any, Snapshot]]:
    """Yield (section, field, entry with another value, snapshot with that entry) wherever the snapshot differs."""
    for section in SECTIONS:
        for entry in getattr(start, section):
            for field, other in varied(entry):
                after = with_entry(start, section, other)
                if after != start:
                    yield section, field, other, after


def failing(start: Snapshot, handles: Callable[[str, Any, Snapshot], bool]) -> set[str]:
    """Return the fields that are not handled."""
    return {field for section, field, other, after in walk(start) if not handles(section, other, after)}


def named(snapshot: Snapshot, section: str, like: Any) -> Any:
    """Return the snapshot's entry of the same name, or None."""
    name = SECTIONS[section][1]
    return next((one for one in getattr(snapshot, section) if getattr(one, name) == getattr(like, name)), None)


def test_the_walk_visits_every_field() -> None:
    assert {field for _, field, _, _ in walk(ROLLING)} == fields()


def test_every_field_is_sent_and_read() -> None:
    def is_sent(_section: str, _other: Any, after: Snapshot) -> bool:
        content = indexed(after)
        is_told_apart = content.content_hash != snapshots.content_hash(ROLLING)
        return is_told_apart and snapshots.decode(snapshots.encode(after)) == content.snapshot

    assert failing(ROLLING, is_sent) == set()


def test_a_change_of_any_field_is_described() -> None:
    def is_described(section: str, other: Any, after: Snapshot) -> bool:
        of = other.tenant if section == "keys" else getattr(other, SECTIONS[section][1])
        changes = describe(ROLLING, after)
        return any(of == change.name for change in changes) and all(len(change.words) > 10 for change in changes)

    assert failing(ROLLING, is_described) - OF_ROLLOUTS == set()


def test_undeclared_fields_are_no_change() -> None:
    assert describe(ROLLING, AT_REST) == describe(AT_REST, ROLLING) == ()


def stand_ins(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in force if every object has become invalid."""
    last_good = LastGood(snapshot)
    keys = {
        *(key for key in whole() if not key.startswith("inferenceservices/")),
        *(f"tenants/{tenant.name}" for tenant in snapshot.tenants),
        *(f"rolloutpolicies/{rollout.name}" for rollout in snapshot.rollouts),
    }
    objects: list[Declared[AnyObject] | None] = [last_good.find_object(key) for key in sorted(keys)]
    objects += [last_good.find_service(f"inferenceservices/{pool.name}", pool.name, b"{}") for pool in snapshot.pools]
    return compiled([one for one in objects if one is not None])


def test_last_good_version_keeps_every_field() -> None:
    def stays(section: str, other: Any, after: Snapshot) -> bool:
        return bool(named(stand_ins(after), section, other) == named(after, section, other))

    assert failing(AT_REST, stays) == set()


@pytest.mark.parametrize("snapshot", [AT_REST, ROLLING])
def test_last_good_version_keeps_the_whole_snapshot(snapshot: Snapshot) -> None:
    rolled_out = {model.id: model.channels | {"stable": "v2"} for model in snapshot.models if model.splits}
    for section in SECTIONS:
        for entry in getattr(snapshot, section):
            found = named(stand_ins(snapshot), section, entry)
            if section == "models" and entry.id in rolled_out:
                assert (found.channels, found.splits) == (rolled_out[entry.id], ())
            else:
                assert found == entry


# -- from what is written ----------------------------------------------------------------------------------------------


def test_every_field_of_every_kind_is_written_in_the_whole_configuration() -> None:
    missing = {field for kind in KINDS.values() for field in spec_fields(kind)} - {field for field, _ in leaves()}
    assert missing == OF_PROCESSES


def test_every_field_of_every_kind_is_compiled() -> None:
    """Leaving out any field changes the snapshot or removes the object."""
    silent = set()
    for field, without in leaves():
        try:
            objects = [declared(key, document) for key, document in without.items()]
        except AssertionError:
            continue  # a required field
        if compiled(objects) == AT_REST:
            silent.add(field)
    assert silent == NOT_COMPILED


def spec_fields(model: type[BaseModel]) -> Iterator[str]:
    """Yield the fields of a kind's spec and of all its parts, as `Tool.timeout`."""
    is_kind = issubclass(model, ShoalObject | InferenceService)
    for name, field in model.model_fields.items():
        if not is_kind:
            yield f"{model.__name__}.{name}"
        if not is_kind or name == "spec":
            yield from (inner for part in parts_of(field.annotation) for inner in spec_fields(part))


def parts_of(annotation: Any) -> list[type[BaseModel]]:
    """Yield the models in a field's type: `tuple[Tool, ...]`, `Band | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for each in get_args(annotation) for part in parts_of(each)]


def leaves() -> Iterator[tuple[str, dict[str, Written]]]:
    """Yield (field, whole configuration without it) for every place where it is written."""
    for key, document in whole().items():
        (kind,) = (kind for (_, name), kind in KINDS.items() if name == document["kind"])
        (spec,) = parts_of(kind.model_fields["spec"].annotation)
        for field, path in paths(spec, document["spec"], ("spec",)):
            every = whole()
            place = every[key]
            for part in path[:-1]:
                place = place[part]
            del place[path[-1]]
            yield field, every


def paths(model: type[BaseModel], written: Written, at: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias not in written:
            continue
        value, here = written[alias], (*at, alias)
        yield f"{model.__name__}.{name}", here
        for part in parts_of(field.annotation):
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                yield from paths(part, each, (*here, number) if isinstance(value, list) else here)
