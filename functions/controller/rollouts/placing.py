"""Join the snapshot compiled from git with the registry's rows, and send the resulting commands to the registry:
rollouts that start, are superseded or are withdrawn.

Level-triggered: each pass steers by the rows that came back. If the registry accepts no command, the channels stay
where they are and the next pass tries again.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from functions.api.declared import Declared, of_kind
from functions.api.ids import ModelId
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.model import Model
from functions.api.snapshot import Snapshot
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.following import RowsFollower
from functions.controller.rollouts.merging import hold_back_models, merge_api
from functions.controller.snapshot.registry_client import RegistryClient, RegistryRefused, RegistryUnavailable, RowMoved
from functions.decisions.rollout.codec import Command as EventCommand
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.steering import Command, Create, steer

_ROUNDS = 3  # superseded, created, placed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedSnapshot:
    snapshot: Snapshot
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # API-declared objects that are left out; git's objects do not wait for them
    refused: tuple[str, ...] = ()  # messages about declared models that would change a version
    held: tuple[str, ...] = ()  # moves that wait for the registry
    rollouts: tuple[Rollout, ...] = ()  # under way or halted


class RowsUnknown(Exception):
    """The registry has never sent its rows: a snapshot without them would remove models and keys."""


async def place_snapshot(
    compiled: Snapshot,
    objects: Iterable[Declared[AnyObject]],
    previous: Snapshot | None,
    rows: RowsFollower,
    registry: RegistryClient,
    *,
    bases: Collection[ModelId] | None,
) -> PlacedSnapshot:
    """Return the snapshot for gateways, with the API's entries and the rollouts' channels, after sending the rollout
    commands that it needs to the registry; raise RowsUnknown if the registry has never sent its rows. `bases`: base
    models that are rolled out in stages; None means all."""
    await rows.ensure_current()
    if not rows.book.is_known:
        raise RowsUnknown(rows.trouble)
    gits, refused = hold_back_models(compiled, previous, rows.book)
    wanted, left_out = await asyncio.to_thread(merge_api, gits, rows.book)
    is_apis = {model.id for model in compiled.models} - {model.id for model in gits.models}
    declared = {id_: channels for id_, channels in declared_channels(objects).items() if id_ not in is_apis}
    for last_round in (False,) * (_ROUNDS - 1) + (True,):
        steered = steer(previous, wanted, declared, rows.book.rows, bases=bases)
        if (
            last_round
            or not steered.commands
            or not await _send_commands(steered.commands, rows, RolloutClient(registry))
        ):
            break
    contradiction = (f"the registry is not followed: {rows.contradiction}",) if rows.contradiction else ()
    return PlacedSnapshot(steered.snapshot, contradiction, left_out, refused, steered.held, steered.rollouts)


def declared_channels(objects: Iterable[Declared[AnyObject]]) -> Mapping[ModelId, Mapping[str, str]]:
    return {ModelId(model.value.spec.id): model.value.spec.channels for model in of_kind(objects, Model)}


async def _send_commands(commands: Iterable[Command], rows: RowsFollower, client: RolloutClient) -> bool:
    """Send the commands in order; return True if the rows changed. The order matters because a channel has at most one
    active rollout. Answers are added together: a thousand new rollouts are one write of the copy, not a thousand."""
    moved, answers = False, list[Rollout]()
    for command in commands:
        try:
            if isinstance(command, Create):
                row = await client.create(command.spec)
            else:
                row = await client.post_event(command.rollout, EventCommand(command.event, command.lock_version))
        except RowMoved as error:
            _log.info("a rollout command is decided again: %s", error)
            moved = await rows.fetch_changes() or moved
        except (RegistryUnavailable, RegistryRefused) as error:
            _log.warning("the registry did not accept a rollout command, so its channel does not move: %s", error)
        else:
            answers.append(row)
    await rows.add_rows(*answers)
    return moved or bool(answers)
