"""What was published reads back as objects that compile to the very same entries."""

from typing import Any

import orjson
import pytest
from msgspec import structs

from functions.api.declared import Declared
from functions.api.ids import RolloutId
from functions.api.kinds.catalogue import AnyObject
from functions.api.snapshot import Snapshot, SplitEntry
from functions.controller.kubernetes.run.last_good import PastObjects
from functions.controller.kubernetes.run.selection import judge
from functions.controller.snapshot.compile import compile_snapshot
from tests.controller.kubernetes.run.rig import POOL, model_spec, service_spec
from tests.controller.kubernetes.run.test_selection import key, written

EVERYTHING: list[tuple[str, str, dict[str, Any]]] = [
    (
        "Tenant",
        "acme",
        {
            "tier": "gold",
            "keys": [
                {
                    "id": "ci",
                    "hmacSha256": "a" * 64,
                    "scopes": ["inference"],
                    "maxClass": "batch",
                    "expires": "2027-06-30",
                },
                {"id": "cd", "hmacSha256": "b" * 64},
            ],
            "models": ["acme/*", POOL],
            "isolation": {"cacheSalt": "shared"},
        },
    ),
    ("Model", "acme.bot", {**model_spec("acme/bot"), "rollout": "slow"}),
    ("QuotaPolicy", "gold", {"weight": 2.5, "limits": {"requestsPerMinute": 60, "maxContextTokens": 4096}}),
    (
        "RoutingPolicy",
        "default",
        {
            "pools": ["*", POOL],
            "session": {"ttl": "1500ms"},
            "prefix": {"source": "bloom"},
            "boundedLoad": 1.5,
            "spreadAbove": {"utilization": 0.5},
            "retry": {"maxAttempts": 2, "budget": 0.1, "hedgeAfter": "300ms"},
            "fallback": [{"when": "saturated", "from": POOL, "to": "base-b", "tiers": ["gold"]}],
            "cascade": [{"from": POOL, "to": "base-b", "threshold": 0.7, "maxTokens": 16, "measure": "p90"}],
            "classifier": {
                "model": "auto",
                "rules": [
                    {"when": {"tools": True, "minPromptTokens": 10, "keywords": ["prove"]}, "to": "base-b"},
                    {"when": {"code": False, "maxPromptTokens": 99, "script": "cyrillic"}, "to": POOL},
                ],
                "otherwise": POOL,
            },
        },
    ),
    (
        "AdmissionPolicy",
        "default",
        {
            "bands": {
                "interactive": {"share": 0.6, "ttftSlo": "500ms"},
                "near-real-time": {"share": 0.3, "ttftSlo": "2s", "maxWait": "5s"},
                "batch": {"share": 0.1},
            },
            "maxQueuedTokens": 1000,
        },
    ),
    (
        "RolloutPolicy",
        "slow",
        {
            "stages": [{"percent": 10, "duration": "5m", "autoHalt": ["error_rate > 2%"]}, {"percent": 100}],
            "minRequests": 7,
            "falseAlarmRate": "0.25%",
            "sticky": "tenant",
        },
    ),
    (
        "AutoscalingPolicy",
        POOL,
        {
            "pool": POOL,
            "replicas": {"min": 1, "max": 8},
            "warm": 1,
            "scaleUp": ["kv_usage > 85% for 3m: +5%"],
            "scaleDown": ["utilization < 40% for 15m: -1"],
        },
    ),
    ("InferenceService", POOL, service_spec(replicas=2, context=4096)),
    ("InferenceService", "base-b", service_spec()),
]


def compiled(objects: list[Declared[AnyObject]]) -> Snapshot:
    return compile_snapshot(objects, {}, epoch=1, revision="test", compiled_unix_s=0.0).snapshot


def declared(kind: str, name: str, spec: dict[str, Any]) -> Declared[AnyObject]:
    judged = judge(key(kind, name), orjson.dumps(written(kind, name, spec)))
    assert judged.declared is not None, judged.problems
    return judged.declared


def test_the_objects_of_a_snapshot_compile_to_the_same_entries() -> None:
    first = compiled([declared(*each) for each in EVERYTHING])
    past = PastObjects(first)
    again = []
    for kind, name, _ in EVERYTHING:
        document = past.service(name, name) if kind == "InferenceService" else past.document(key(kind, name))
        assert document is not None, f"{kind} {name} is not in the snapshot"
        judged = judge(key(kind, name), document)
        assert judged.declared is not None, judged.problems
        again.append(judged.declared)
    assert compiled(again) == first


@pytest.mark.parametrize("unknown", ["tenants/nobody", "models/acme/bot", "widgets/x", "tenants/", ""])
def test_what_the_snapshot_does_not_know_is_not_invented(unknown: str) -> None:
    past = PastObjects(compiled([declared(*each) for each in EVERYTHING]))
    assert past.document(unknown) is None
    assert past.service("x", "no-such-pool") is None


def test_where_a_rollout_is_under_way_its_target_is_what_was_declared() -> None:
    """What stands in for a broken object must not take the rollout back."""
    whole = compiled([declared(*each) for each in EVERYTHING])
    (bot,) = (model for model in whole.models if model.id == "acme/bot")
    version = structs.replace(bot.versions[0], name="next")
    split = SplitEntry("stable", RolloutId("ro-12345678"), 0, 10, "next")
    rolling = structs.replace(bot, versions=(*bot.versions, version), splits=(split,))
    others = tuple(model for model in whole.models if model is not bot)
    document = PastObjects(structs.replace(whole, models=(*others, rolling))).document("models/acme.bot")
    assert document is not None
    assert orjson.loads(document)["spec"]["channels"]["stable"] == "next"
