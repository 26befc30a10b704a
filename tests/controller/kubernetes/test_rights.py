"""Rights that the target needs on the cluster: exactly these suffice, and each missing right is named."""

from typing import Any

import pytest

from functions.controller.kubernetes.errors import KubeError
from functions.controller.kubernetes.outcome import ApplyOutcome
from tests.controller.kubernetes.fixtures import Space
from tests.controller.kubernetes.fleet import Fleet, autoscaling, pool
from tests.controller.kubernetes.run.waiting import until

pytestmark = pytest.mark.servers

# (namespace of the space, API group, resource): verbs
Rights = dict[tuple[str, str, str], tuple[str, ...]]
NEEDED: Rights = {
    ("models", "serving.kserve.io", "inferenceservices"): ("list", "create", "patch", "delete"),
    ("models", "policy", "poddisruptionbudgets"): ("list", "create", "patch", "delete"),
    ("models", "apps", "deployments"): ("list",),
    ("system", "", "configmaps"): ("get", "create", "patch"),
}
EACH = [(key, verb) for key, verbs in NEEDED.items() for verb in verbs]


def limited_fleet(space: Space, rights: Rights) -> Fleet:
    """Return a fleet whose controller runs as a ServiceAccount with these rights."""
    client = space.client

    def create(path: str, body: dict[str, Any]) -> None:
        client.request("post", path, body=body, serializer=lambda _client, data: data)

    create(f"/api/v1/namespaces/{space.system}/serviceaccounts", {"metadata": {"name": "controller"}})
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": space.system}
    for where, namespace in (("system", space.system), ("models", space.models)):
        rules = [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
            for (there, group, resource), verbs in rights.items()
            if there == where and verbs
        ]
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        create(f"{rbac}/roles", {"metadata": {"name": "controller"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "controller"}
        create(f"{rbac}/rolebindings", {"metadata": {"name": "controller"}, "roleRef": role, "subjects": [subject]})
    until(lambda: are_in_force(space, rights), "the authoriser knows the roles, which it follows by a watch")
    token = space.server.token_of(space.system, "controller")
    return Fleet(space, make_client=lambda: space.server.client(token))


def are_in_force(space: Space, rights: Rights) -> bool:
    def allowed(namespace: str, verb: str, group: str, resource: str) -> bool:
        attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": f"system:serviceaccount:{space.system}:controller", "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer = space.client.request("post", path, body=review, serializer=lambda _client, data: data)
        return bool(answer["status"]["allowed"])

    names = {"system": space.system, "models": space.models}
    return all(
        allowed(names[where], verb, group, resource)
        for (where, group, resource), verbs in rights.items()
        for verb in verbs
    )


def whole_life(fleet: Fleet) -> ApplyOutcome:
    """Make every kind of request: create, hand over, update, prune."""
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    fleet.converge(fleet.desired(pool("a", args="--changed"), autoscaling("a"), pool("b")))
    return fleet.converge(fleet.desired(pool("a", args="--changed")))


def test_documented_rights_suffice(space: Space) -> None:
    fleet = limited_fleet(space, NEEDED)
    whole_life(fleet)
    assert fleet.service("b") is None


@pytest.mark.parametrize(("key", "verb"), EACH, ids=[f"{verb} {key[2]}" for key, verb in EACH])
def test_each_missing_right_is_named(space: Space, key: tuple[str, str, str], verb: str) -> None:
    rights = {**NEEDED, key: tuple(each for each in NEEDED[key] if each != verb)}
    fleet = limited_fleet(space, rights)
    said = ""
    try:
        for documents in ([pool("a"), pool("b")], [pool("a")]):
            said += fleet.push(*documents).stalled
    except KubeError as error:
        said += str(error)
    assert f"grant the verb {verb} on {key[2]} of API group {key[1] or 'core'}" in said


def test_object_that_cannot_be_deleted_stays_in_the_inventory(space: Space) -> None:
    key = ("models", "serving.kserve.io", "inferenceservices")
    fleet = limited_fleet(space, {**NEEDED, key: ("list", "create", "patch")})
    fleet.converge(fleet.desired(pool("a"), pool("b")))
    desired = fleet.desired(pool("a"))
    assert "grant the verb delete" in fleet.applier.reconcile(desired).stalled
    assert "b" in {entry.name for entry in fleet.store.read().entries if entry.kind == "InferenceService"}
