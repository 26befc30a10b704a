"""A last good version stands in as it was accepted, with the references that other objects rely on."""

import pytest
from msgspec import structs

from functions.api import consistency
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.snapshot import Snapshot
from functions.controller.kubernetes.run.cr_source import referrers
from functions.controller.kubernetes.run.last_good import LastGood
from tests.controller.variations import with_split
from tests.controller.whole import POOL, compiled, declared, whole, whole_snapshot


def last_good(snapshot: Snapshot, key: str) -> object:
    plural, _, name = key.partition("/")
    found = LastGood(snapshot)
    return found.find_service(key, name, b"{}") if plural == "inferenceservices" else found.find_object(key)


@pytest.mark.parametrize("unknown", ["tenants/nobody", "models/acme/bot", "widgets/x", "tenants/", ""])
def test_object_missing_in_the_snapshot_has_no_last_good_version(unknown: str) -> None:
    found = LastGood(whole_snapshot())
    assert found.find_object(unknown) is None
    assert found.find_service("inferenceservices/x", "no-such-pool", b"{}") is None


def test_stand_ins_keep_the_references_of_the_objects() -> None:
    written = [declared(key, document) for key, document in whole().items()]
    standing_in = [last_good(whole_snapshot(), key) for key in whole()]
    assert referrers(standing_in) == referrers(written)  # type: ignore[arg-type]
    assert list(consistency.problems(standing_in, complete=True)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", sorted(whole()))
def test_dangling_references_are_found_for_stand_ins_too(gone: str) -> None:
    """If an object is gone, the same referring objects are blamed for stand-ins as for written objects."""

    def blamed(objects: list[object]) -> set[str]:
        return {problem.place.file for problem in consistency.problems(objects, complete=True)}  # type: ignore[arg-type]

    written = [declared(key, document) for key, document in whole().items() if key != gone]
    standing_in = [last_good(whole_snapshot(), key) for key in whole() if key != gone]
    assert blamed(standing_in) == blamed(list(written))


@pytest.mark.parametrize("key", sorted(whole()))
def test_newcomer_that_claims_taken_names_is_detected(key: str) -> None:
    """A newcomer under another name claims keys, patterns and pools that belong to an existing object."""
    standing_in = [last_good(whole_snapshot(), each) for each in whole()]
    plural, _, name = key.partition("/")
    document = whole()[key]
    twin = {**document, "metadata": {**document["metadata"], "name": f"{name}-2"}}
    if plural == "models" or plural in {"quotapolicies", "rolloutpolicies"}:
        return  # they claim only their names
    newcomer = declared(f"{plural}/{name}-2", twin)
    blamed = {problem.place.file for problem in consistency.problems([*standing_in, newcomer], complete=True)}  # type: ignore[list-item]
    assert blamed == {f"{plural}/{name}-2"}


def test_stand_in_during_a_rollout_declares_its_target() -> None:
    """A stand-in for a broken object must not roll back the rollout."""
    found = LastGood(with_split(whole_snapshot())).find_object("models/acme.bot")
    assert found is not None
    assert isinstance(found.value, Model)
    assert found.value.spec.channels["stable"] == "v2"
    (entry,) = found.entries
    assert (entry.channels["stable"], entry.splits) == ("v2", ())  # type: ignore[union-attr]


def test_loading_version_is_not_a_declared_channel() -> None:
    whole_ = whole_snapshot()
    (bot,) = (model for model in whole_.models if model.id == "acme/bot")
    loading = structs.replace(bot, channels={**bot.channels, "incoming": "v2", "incoming-2": "v1"})
    found = LastGood(structs.replace(whole_, models=(loading,))).find_object("models/acme.bot")
    assert found is not None
    assert found.entries == (bot,)


def test_a_service_keeps_the_document_that_the_cluster_has() -> None:
    """The budget is made from this document, which alone holds the namespace."""
    text = b'{"metadata": {"name": "x", "namespace": "models"}}'
    found = LastGood(whole_snapshot()).find_service("inferenceservices/x", POOL, text)
    assert found is not None
    assert isinstance(found.value, InferenceService)
    assert (found.value.metadata.name, found.value.pool) == ("x", POOL)
    assert found.document.tree().plain()["metadata"]["namespace"] == "models"


def test_stand_in_with_a_dangling_reference_is_left_out_and_reported() -> None:
    """Such objects must not reach the snapshot: gateways would refuse all of it."""
    found = LastGood(whole_snapshot())
    objects = [found.find_object(key) for key in ("tenants/acme", "models/acme.bot", f"autoscalingpolicies/{POOL}")]
    snapshot = compiled([one for one in objects if one is not None])
    assert (snapshot.models, snapshot.autoscaling) == ((), ())
    assert [tenant.name for tenant in snapshot.tenants] == ["acme"]
