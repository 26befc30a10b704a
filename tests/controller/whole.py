"""One configuration in which every field of every kind is written with another value than its default.

`test_every_field` requires it to be complete: it fails if a new field is not written here.
"""

from typing import Any

import orjson

from functions.api.declared import Declared
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import API_VERSION as KSERVE
from functions.api.kinds.inference_service import (
    DEDICATED_TO_ANNOTATION,
    MODEL_LABEL,
    POOL_LABEL,
    PRICE_ANNOTATION,
    QUANTIZATION_ANNOTATION,
    TASK_LABEL,
)
from functions.api.snapshot import Snapshot
from functions.controller.kubernetes.run.selection import validate_document
from functions.controller.snapshot.compile import compile_snapshot

POOL, OTHER_POOL, OWN_POOL = "base-a", "base-b", "base-a-acme"
Written = dict[str, Any]


def limits(factor: int = 1) -> Written:
    names = (
        "requestsPerMinute",
        "inputTokensPerMinute",
        "outputTokensPerMinute",
        "concurrentRequests",
        "kvTokenSecondsPerMinute",
        "gpuSecondsPerHour",
        "maxContextTokens",
        "tokenBurstSeconds",
    )
    counted = {name: factor * 60 * number for number, name in enumerate(names, 1)}
    return {**counted, "maxOutputTokens": factor * 30}


def accelerators(count: int) -> Written:
    return {"limits": {"nvidia.com/gpu": str(count)}}


def service(name: str, task: str) -> Written:
    model = {
        "modelFormat": {"name": "vLLM"},
        "storageUri": f"pvc://shoal-models/{name}",
        "args": ["--max-model-len=4096", "--enable-lora", "--max-cpu-loras=32"],
        "resources": accelerators(3),
    }
    predictor = {"minReplicas": 2, "maxReplicas": 8, "model": model}
    return {
        "apiVersion": KSERVE,
        "kind": "InferenceService",
        "metadata": {"name": name, "labels": {POOL_LABEL: name, TASK_LABEL: task}},
        "spec": {"predictor": predictor},
    }


def own_pool() -> Written:
    """A second pool of the first one's model, for one tenant alone."""
    document = service(OWN_POOL, "embed")
    document["metadata"]["labels"][MODEL_LABEL] = POOL
    document["metadata"]["annotations"] = {
        DEDICATED_TO_ANNOTATION: "acme",
        QUANTIZATION_ANNOTATION: "fp8",
        PRICE_ANNOTATION: "2.5",
    }
    predictor = document["spec"]["predictor"]
    predictor["model"] |= {"storageUri": f"pvc://shoal-models/{POOL}"}
    del predictor["model"]["resources"]  # its containers' are counted
    predictor["containers"] = [{"name": "beside", "resources": accelerators(2)}]
    predictor["workerSpec"] = {"pipelineParallelSize": 2}
    return document


def ours(kind: str, name: str, spec: Written) -> Written:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def version(model: str, name: str, digit: str) -> Written:
    return {"name": name, "artifact": f"s3://shoal-models/{model}/{name}", "digest": "sha256:" + digit * 64}


def whole() -> dict[str, Written]:
    """Return the documents by key (`plural/name`)."""
    return {
        "tenants/acme": ours(
            "Tenant",
            "acme",
            {
                "tier": "gold",
                "keys": [
                    {
                        "id": "ci",
                        "hmacSha256": "a" * 64,
                        "scopes": ["inference", "models:read"],
                        "maxClass": "batch",
                        "expires": "2027-06-30",
                        "limits": limits(),
                    },
                    {"id": "cd", "hmacSha256": "b" * 64},
                ],
                "models": ["acme/*", POOL],
                "isolation": {"cacheSalt": "shared", "pools": "preferred"},
                "contextOverflow": "slide",
                "conversations": {"store": True, "ttl": "2h", "maxTokens": 9000},
                "tools": [
                    {
                        "name": "search",
                        "description": "Looks it up",
                        "url": "https://tools.acme.example/search",
                        "parameters": '{"type":"object","properties":{}}',
                        "timeout": "3s",
                        "maxCalls": 2,
                        "maxBytes": 1000,
                        "secret": "search-token",
                    }
                ],
            },
        ),
        "models/acme.bot": ours(
            "Model",
            "acme.bot",
            {
                "id": "acme/bot",
                "type": "lora",
                "base": POOL,
                "versions": [version("acme/bot", "v1", "1"), version("acme/bot", "v2", "2")],
                "channels": {"stable": "v1", "next": "v2"},
                "rollout": "slow",
            },
        ),
        f"models/{POOL}": ours(
            "Model",
            POOL,
            {
                "id": POOL,
                "type": "base",
                "versions": [{"name": "v1", "artifact": f"pvc://shoal-models/{POOL}", "digest": "sha256:" + "3" * 64}],
                "channels": {"stable": "v1"},
            },
        ),
        "quotapolicies/gold": ours(
            "QuotaPolicy", "gold", {"weight": 2.5, "limits": limits(2), "cachedTokenWeight": 0.25}
        ),
        "routingpolicies/default": ours(
            "RoutingPolicy",
            "default",
            {
                "pools": ["*", POOL],
                "session": {"ttl": "1500ms"},
                "prefix": {"source": "bloom"},
                "prefill": {"minPromptTokens": 4096, "giveUpAfter": "5s"},
                "boundedLoad": 1.5,
                "unknownFields": "refuse",
                "spreadAbove": {"utilization": 0.5},
                "retry": {"maxAttempts": 2, "budget": 0.1, "hedgeAfter": "300ms"},
                "fallback": [{"when": "saturated", "from": POOL, "to": OTHER_POOL, "tiers": ["gold"]}],
                "cascade": [
                    {
                        "from": POOL,
                        "to": OTHER_POOL,
                        "tiers": ["gold"],
                        "threshold": 0.7,
                        "maxTokens": 16,
                        "measure": "p90",
                    }
                ],
                "classifier": {
                    "model": "auto",
                    "rules": [
                        {
                            "when": {
                                "minPromptTokens": 10,
                                "maxPromptTokens": 99,
                                "tools": True,
                                "code": False,
                                "keywords": ["prove"],
                                "script": "cyrillic",
                            },
                            "to": OTHER_POOL,
                        }
                    ],
                    "otherwise": POOL,
                },
                "placement": [
                    {
                        "when": {
                            "classes": ["batch"],
                            "tiers": ["gold"],
                            "tenants": ["acme"],
                            "minPromptTokens": 5,
                            "maxPromptTokens": 50,
                            "minPredictedTtft": "800ms",
                        },
                        "to": OWN_POOL,
                    }
                ],
            },
        ),
        "admissionpolicies/default": ours(
            "AdmissionPolicy",
            "default",
            {
                "pools": ["*", POOL],
                "bands": {
                    "interactive": {"share": 0.5, "ttftSlo": "500ms", "maxWait": "250ms"},
                    "near-real-time": {"share": 0.25, "ttftSlo": "2s", "maxWait": "5s"},
                    "batch": {"share": 0.125, "ttftSlo": "1m", "maxWait": "5m"},
                },
                "maxQueuedTokens": 1000,
            },
        ),
        "rolloutpolicies/slow": ours(
            "RolloutPolicy",
            "slow",
            {
                "stages": [
                    {"percent": 10, "duration": "5m", "autoHalt": ["error_rate > 2%"]},
                    {"percent": 100, "autoHalt": ["p99_latency > 2x"]},
                ],
                "minRequests": 7,
                "falseAlarmRate": "0.25%",
                "sticky": "tenant",
            },
        ),
        f"autoscalingpolicies/{POOL}": ours(
            "AutoscalingPolicy",
            POOL,
            {
                "pool": POOL,
                "replicas": {"min": 1, "max": 8},
                "warm": 1,
                "idleAfter": "20m",
                "scaleUp": ["kv_usage > 85% for 3m: +5%"],
                "scaleDown": ["utilization < 40% for 15m: -1"],
            },
        ),
        f"inferenceservices/{POOL}": service(POOL, "embed"),
        f"inferenceservices/{OTHER_POOL}": service(OTHER_POOL, "score"),
        f"inferenceservices/{OWN_POOL}": own_pool(),
    }


def declared(key: str, document: Written) -> Declared[AnyObject]:
    judged = validate_document(key, orjson.dumps(document))
    assert judged.declared is not None, judged.problems
    return judged.declared


def compiled(objects: "list[Declared[AnyObject]]") -> Snapshot:
    return compile_snapshot(objects, {}, epoch=1, revision="test", compiled_unix_s=0.0).snapshot


def whole_snapshot() -> Snapshot:
    return compiled([declared(key, document) for key, document in whole().items()])
