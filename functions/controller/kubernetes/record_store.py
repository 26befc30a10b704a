"""The record in its ConfigMap: read, written under an optimistic lock, fenced.

Every write carries the uid and resourceVersion that were read, so that of two controllers one gets `Stale`. The first
write creates the ConfigMap empty and then applies to it: created with content, it would belong to an update of ours,
with which our own applies would conflict.
"""

from dataclasses import replace

from functions.controller.kubernetes import inventory
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import LeadershipLost
from functions.controller.kubernetes.inventory import Record
from functions.controller.kubernetes.objects import CONFIG_MAP, CONSENT_ANNOTATION, Body, mapping_at, uid_of, version_of

RECORD_NAME = "shoal-controller"


class RecordStore:
    def __init__(self, api: KubeApi, namespace: str, name: str = RECORD_NAME) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    def read(self) -> Record:
        """What is remembered; LeadershipLost where a later leader wrote it."""
        found = self._api.get(CONFIG_MAP, self._namespace, self._name)
        if found is None:
            return Record()
        record = inventory.decode(mapping_at(found, "data"))
        if record.token > self._api.token:
            message = f"the record was written under token {record.token}, ours is {self._api.token}"
            raise LeadershipLost(message)
        consent = str(mapping_at(found, "metadata", "annotations").get(CONSENT_ANNOTATION, ""))
        return replace(record, consent=consent, uid=uid_of(found), resource_version=version_of(found))

    def write(self, record: Record) -> Record:
        """The record as it is now, under our token; Stale where somebody else wrote since it was read."""
        record = replace(record, token=self._api.token)
        head: Body = {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
        }
        if not record.uid:
            created = self._api.create(head)
            record = replace(record, uid=uid_of(created), resource_version=version_of(created))
        lock = {"uid": record.uid, "resourceVersion": record.resource_version}
        body = {**head, "metadata": {**head["metadata"], **lock}, "data": inventory.encode(record)}
        written = self._api.server_side_apply(body, force=True)  # by force: nobody else may keep our record
        return replace(record, resource_version=version_of(written))
