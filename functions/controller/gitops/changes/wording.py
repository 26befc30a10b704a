"""Two sets of facts about one thing, in one line: `tier standard -> enterprise; key ci revoked`."""

from collections.abc import Iterator

from functions.controller.gitops.changes.facts import Absent, Facts, Secret, Value

_ADDED_SHOWN = 4  # names of a set, before the rest is counted
_TEXT_SHOWN_CHARS = 100  # of one value: a description must not hide what else has changed
_GONE_WORDS = {"key": "revoked"}  # where `removed` is not what people say


def compared(old: Facts, new: Facts) -> str:
    """What changed, clause by clause; empty where nothing did."""
    clauses: list[str] = []
    for label in {**old, **new}:
        if label not in old:
            clauses.extend(_came(label, new[label], old, new))
        elif label not in new:
            clauses.extend(_went(label, old, new))
        elif old[label] != new[label]:
            clauses.extend(_changed(label, old[label], new[label]))
    return "; ".join(clauses)


def introduced(facts: Facts) -> str:
    """What something new is, briefly: its plain facts."""
    clauses: list[str] = []
    for label, value in facts.items():
        if ":" in label or isinstance(value, Secret | Absent):
            continue
        if not isinstance(value, frozenset):
            clauses.append(f"{label} {shown(value)}")
        elif value:
            clauses.append(f"{label}{'' if len(value) == 1 or label.endswith('s') else 's'} {_listed(value)}")
    return ", ".join(clauses)


def shown(value: Value) -> str:
    if isinstance(value, Secret):
        return "secret"
    if isinstance(value, frozenset):
        return _listed(value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _TEXT_SHOWN_CHARS else text[: _TEXT_SHOWN_CHARS - 1] + "…"


def _came(label: str, value: Value, old: Facts, new: Facts) -> Iterator[str]:
    if not _is_detail(label, new):
        yield f"{label} {shown(value)} added"


def _went(label: str, old: Facts, new: Facts) -> Iterator[str]:
    if not _is_detail(label, old):
        yield f"{label} removed (was {shown(old[label])})"


def _is_detail(label: str, facts: Facts) -> bool:
    """`key ci: scopes` belongs to something that is itself listed as added or removed: `key` ci."""
    return ":" in label and label.partition(" ")[0] in facts


def _changed(label: str, old: Value, new: Value) -> Iterator[str]:
    if isinstance(old, frozenset) and isinstance(new, frozenset):
        yield from _set_changed(label, old, new)
    elif isinstance(old, Secret) or isinstance(new, Secret):
        yield f"{label} replaced"
    elif shown(old) == shown(new):
        yield f"{label} {shown(old)} changed further on"
    else:
        yield f"{label} {shown(old)} -> {shown(new)}{_percent(old, new)}"


def _set_changed(label: str, old: frozenset[str], new: frozenset[str]) -> Iterator[str]:
    if came := new - old:
        yield f"{label} {_listed(came)} added"
    if went := old - new:
        yield f"{label} {_listed(went)} {_GONE_WORDS.get(label, 'removed')}"


def _percent(old: Value, new: Value) -> str:
    """`(+60 %)` for 500000 -> 800000; nothing where either is not a number, or there was none before."""
    if not isinstance(old, int | float) or not isinstance(new, int | float) or not old:
        return ""
    return f" ({(new - old) / old:+.0%})".replace("%", " %")


def _listed(names: frozenset[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _ADDED_SHOWN
    return ", ".join(ordered[:_ADDED_SHOWN]) + (f" and {more} more" if more > 0 else "")
