"""Wanted total of replicas of pools whose base has several versions, stored on the cluster.

While versions move, a pool's `minReplicas` is only a part of its replicas and no longer says how many there should
be. So the total that people or the autoscaler want is stored in the controller's ConfigMap, under its own key and
field manager. It is written before anything is done by it, so that the next leader can continue.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Terminal
from functions.controller.kubernetes.inventory import RECORD_NAME
from functions.controller.kubernetes.objects import CONFIG_MAP, mapping_at
from functions.controller.kubernetes.versions.second_service import VERSIONS_MANAGER

KEY = "versions"


class PoolCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    total: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    surge: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0  # replicas beyond the total while versions move


Counts = Mapping[str, PoolCount]  # by pool


class CountsStore:
    def __init__(self, api: KubeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    def read(self) -> dict[str, PoolCount]:
        """Return the totals by pool, none if there is no record. Raises Terminal if they cannot be decoded: guessing
        would end replicas. Blocks."""
        found = self._api.get(CONFIG_MAP, self._namespace, RECORD_NAME)
        text = mapping_at(found or {}, "data").get(KEY) or "{}"
        try:
            return msgspec.json.decode(text, type=dict[str, PoolCount])
        except msgspec.DecodeError as error:
            raise Terminal(
                f"{KEY} in the ConfigMap {self._namespace}/{RECORD_NAME} cannot be read: {error}; repair it, or remove "
                "the key if no second InferenceService is left"
            ) from error

    def write(self, counts: Counts) -> None:
        body = {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.kind,
            "metadata": {"name": RECORD_NAME, "namespace": self._namespace},
            "data": {KEY: msgspec.json.encode(dict(counts), order="deterministic").decode()},
        }
        self._api.server_side_apply(body, manager=VERSIONS_MANAGER, force=True)
