"""Lists in pages: `limit` entries after a cursor; `next_after` is the cursor of the
following page, null on the last one."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path, Query

from functions.api.ids import DIGEST_PATTERN, MODEL_ID_PATTERN, NAME_PATTERN, ROLLOUT_ID_PATTERN

MAX_LIMIT = 1000
CURSOR_MAX = 2**53

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many at most.")]
AfterModel = Annotated[
    str, Query(pattern=rf"^(?:{MODEL_ID_PATTERN})?$", max_length=130, description="The last id of the page before.")
]
AfterName = Annotated[
    str, Query(pattern=rf"^(?:{NAME_PATTERN})?$", max_length=64, description="The last name of the page before.")
]
AfterNumber = Annotated[
    int | None,
    Query(ge=1, le=CURSOR_MAX, description="The `next_after` of the page before; the list goes back in time."),
]

TenantName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
ModelName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
VersionName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
ChannelName = Annotated[str, Path(pattern=rf"^{NAME_PATTERN}$")]
RolloutName = Annotated[str, Path(pattern=rf"^{ROLLOUT_ID_PATTERN}$")]
DigestName = Annotated[str, Path(pattern=rf"^{DIGEST_PATTERN}$")]


def page_of(data: Sequence[Any], following: Any, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(data), "has_more": following is not None, "next_after": following, **more}
