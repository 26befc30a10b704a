"""How long a batch may run, as clients write it: `24h` as OpenAI has it, or any `<n>m` and `<n>h` up to a week."""

import re

_WINDOW = re.compile(r"([1-9][0-9]{0,4})(m|h)")
_UNIT_S = {"m": 60, "h": 3600}
MAX_WINDOW_S = 7 * 24 * 3600


def window_s(text: str) -> int | None:
    """Seconds; None where the text is no window."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _UNIT_S[match[2]] if match is not None else 0
    return seconds if 0 < seconds <= MAX_WINDOW_S else None
