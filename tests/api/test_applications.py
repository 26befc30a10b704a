"""Tools and conversations of a tenant, in YAML and in the snapshot."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from functions.api.kinds.applications import Conversations, Tool
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.tenant import Tenant


def tool(**changes: Any) -> Tool:
    return Tool.model_validate({"name": "weather", "url": "https://tools.example.com/weather", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "with space"},
        {"name": ""},
        {"name": "x" * 65},
        {"url": "http://tools.example.com"},
        {"url": "https://"},
        {"url": "https://user@tools.example.com"},
        {"url": "https://tools.example.com/#x"},
        {"url": "https://tools.example.com/\n"},
        {"url": "https://tools.example.com:x/"},
        {"url": "https://tools.example.com/" + "a" * 500},
        {"parameters": "[]"},
        {"parameters": "nope"},
        {"parameters": "[" * 5000},
        {"parameters": '{"a":"' + "x" * 8000 + '"}'},
        {"timeout": "10"},
        {"maxCalls": 0},
        {"maxCalls": 17},
        {"maxBytes": 2**20 + 1},
        {"secret": "../pepper"},
        {"unknown": 1},
    ],
)
def test_invalid_tools_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        tool(**changes)


def test_a_tool_with_everything() -> None:
    made = tool(
        parameters='{"type":"object"}', timeout="500ms", maxCalls=16, maxBytes=1024, secret="weather", description="?"
    )
    assert made.timeout_s == 0.5 and made.max_calls == 16


def test_conversations_are_off_by_default() -> None:
    assert not Conversations().store
    assert Conversations.model_validate({"store": True, "ttl": "2h"}).ttl_s == 7200


def test_two_tools_of_one_name_are_found() -> None:
    one = {"name": "weather", "url": "https://tools.example.com"}
    document = {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "acme"},
        "spec": {"tier": "t", "tools": [one, one]},
    }
    found = list(Tenant.model_validate_json(json.dumps(document)).findings())
    assert [finding.path for finding in found] == [("spec", "tools", 1, "name")]


@pytest.mark.parametrize(
    ("label", "task", "findings"), [(None, "generate", 0), ("embed", "embed", 0), ("chat", "generate", 1)]
)
def test_a_pools_task_is_a_label(label: str | None, task: str, findings: int) -> None:
    labels = {"shoal.dev/pool": "minilm"} | ({"shoal.dev/task": label} if label else {})
    model = {"modelFormat": {"name": "vLLM"}, "args": ["--max-model-len=256"]}
    service = InferenceService.model_validate(
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": "minilm", "labels": labels},
            "spec": {"predictor": {"model": model | {"args": ("--max-model-len=256",)}}},
        }
    )
    assert service.task == task
    assert sum("shoal.dev/task" in finding.path for finding in service.findings()) == findings
