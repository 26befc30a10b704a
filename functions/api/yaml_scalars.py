"""What a plain scalar means, by YAML 1.2.

Only true and false are booleans; dates, `.nan`, `.inf`, octals and hexadecimals stay text.
"""

import re

from functions.api.yaml_tree import Scalar

TEXT_TAGS = frozenset({"!", "tag:yaml.org,2002:str"})

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]{1,20}|[0-9]{1,20}\.[0-9]{0,20})(?:[eE][-+]?[0-9]{1,2})?")
_BEGIN_NUMBERS = frozenset("+-.0123456789")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def resolved(text: str) -> Scalar:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] in _BEGIN_NUMBERS:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text
