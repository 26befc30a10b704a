"""All drills by name, in the order in which `--all` plays them: load, replicas, models, then what all depends on."""

from functions.cli.drill import drills_away, drills_cascade, drills_models, drills_pressure, drills_replicas
from functions.cli.drill.declared import Drill
from functions.cli.refused import Refused

DRILLS: tuple[Drill, ...] = (
    *drills_pressure.DRILLS,
    *drills_replicas.DRILLS,
    *drills_models.DRILLS,
    *drills_cascade.DRILLS,
    *drills_away.DRILLS,
)


def named(name: str) -> Drill:
    found = next((drill for drill in DRILLS if drill.name == name), None)
    if found is None:
        raise Refused(f"there is no drill {name!r}; there are: {', '.join(drill.name for drill in DRILLS)}")
    return found
