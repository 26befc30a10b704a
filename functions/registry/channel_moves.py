"""Move a channel: immediately if there is nothing to compare, otherwise in the stages of the model's policy.

                     no channel yet            → the channel is created and points to the version
POST …/channels/c    the same version          → nothing changes
   {version}         a rollout to it runs      → that rollout is returned
                     another rollout runs      → conflict, which names it
                     one stage, or same bytes  → the channel moves; the controller publishes it once it is loaded
                     more stages               → a rollout starts, and moves the channel when it completes
"""

from collections.abc import Callable
from dataclasses import dataclass

from functions.api.ids import Digest, ModelId
from functions.api.snapshot import RolloutEntry
from functions.decisions.rollout.lifecycle import Rollout, RolloutSpec
from functions.registry.sql import catalogue_writes, rollout_writes, rollouts
from functions.registry.sql.catalogue import StoredModel, StoredVersion
from functions.registry.sql.catalogue_writes import CatalogueLimits
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.transaction import Write

PolicyOf = Callable[[str], RolloutEntry]


@dataclass(frozen=True, slots=True)
class ChannelMoveResult:
    model: StoredModel
    channel: str
    version: StoredVersion  # the requested version
    lock_version: int
    is_new: bool
    rollout: Rollout | None = None  # the rollout that moves the channel, if any


@dataclass(frozen=True, slots=True)
class ChannelMove:
    model: ModelId
    channel: str
    version: str
    policy_of: PolicyOf
    limits: CatalogueLimits
    if_lock_version: int | None = None  # lock version that the caller has seen; 0: no channel yet

    def apply(self, write: Write) -> ChannelMoveResult:
        """Point the channel to the version in the caller's transaction: by starting a rollout if the content changes
        and the policy has stages, else immediately. Do nothing if it points or moves there already. Raises
        CatalogueRefused if that is not possible."""
        model = catalogue_writes.require_model(write, self.model)
        version = model.version(self.version)
        if version is None:
            message = f"{self.model} has no version {self.version}; PUT it first"
            raise CatalogueRefused("missing", "version_not_found", message, self.version)
        self._check_seen(model)
        pointed = model.channels.get(self.channel)
        active = rollouts.active_of(write.connection, self.model, self.channel)
        lock_version = pointed.lock_version if pointed is not None else 0
        if active is not None and active.rollout.to_version == self.version:
            return ChannelMoveResult(model, self.channel, version, lock_version, is_new=False, rollout=active.rollout)
        if active is not None:
            rollout_writes.refuse_second(write, self.model, self.channel)
        if pointed is not None and pointed.version == self.version:
            return ChannelMoveResult(model, self.channel, version, lock_version, is_new=False)
        before = model.version(pointed.version) if pointed is not None else None
        policy = self.policy_of(model.rollout)
        if before is None or before.digest == version.digest or len(policy.stages) < 2:
            after = catalogue_writes.point_channel(write, model, self.channel, self.version, self.limits)
            return ChannelMoveResult(model, self.channel, version, after.lock_version, is_new=True)
        rollout = self._start_rollout(write, model, before, version, policy)
        return ChannelMoveResult(model, self.channel, version, lock_version, is_new=True, rollout=rollout)

    def _start_rollout(
        self, write: Write, model: StoredModel, before: StoredVersion, version: StoredVersion, policy: RolloutEntry
    ) -> Rollout:
        spec = RolloutSpec(
            model=self.model,
            channel=self.channel,
            pool=model.base,
            from_version=before.name,
            from_digest=Digest(before.digest),
            from_artifact_uri=before.artifact_uri,
            to_version=version.name,
            to_digest=Digest(version.digest),
            to_artifact_uri=version.artifact_uri,
            policy=policy,
            origin="api",
            previous=rollouts.last_id_of(write.connection, self.model, self.channel),
        )
        return rollout_writes.create(write, spec)[0]

    def _check_seen(self, model: StoredModel) -> None:
        pointed = model.channels.get(self.channel)
        found = pointed.lock_version if pointed is not None else 0
        if self.if_lock_version is not None and self.if_lock_version != found:
            message = f"{self.model}:{self.channel} has moved since; its ETag is {found}, not {self.if_lock_version}"
            raise CatalogueRefused("precondition", "channel_changed", message, str(found))
