"""Values of expressions: frozen, with typed units and a canonical text.

Two expressions mean the same if and only if their texts are equal, and every text parses back to its value
(test_canonical_text_parses_back_to_the_same_value).
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from functions.api.kinds.quantities import duration_text

Comparison = Literal[">", "<", ">=", "<="]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio from 0 to 1: `2%` is 0.02."""

    value: float

    @property
    def text(self) -> str:
        return f"{_decimal(self.value, 100)}%"


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration with millisecond precision."""

    value: float

    @property
    def milliseconds(self) -> int:
        return round(self.value * 1000)

    @property
    def text(self) -> str:
        return duration_text(self.milliseconds)

    @property
    def plain_text(self) -> str:
        """Text without a unit, for a metric whose name has it: `0.5`."""
        return _decimal(self.milliseconds / 1000, 1)


@dataclass(frozen=True, slots=True)
class TimesControl:
    """A multiple of the control group's value, which is measured on the old version at the same time."""

    factor: float

    @property
    def text(self) -> str:
        return f"{_decimal(self.factor, 1)}x"


@dataclass(frozen=True, slots=True)
class TimesSlo:
    """A multiple of the bound that the pool's AdmissionPolicy promises."""

    factor: float

    @property
    def text(self) -> str:
        return f"{_decimal(self.factor, 1)} * slo"


@dataclass(frozen=True, slots=True)
class HaltCondition:
    """A condition that stops a rollout while it holds."""

    metric: str
    comparison: Comparison
    threshold: Ratio | Seconds | TimesControl

    @property
    def text(self) -> str:
        return f"{self.metric} {self.comparison} {self.threshold.text}"


@dataclass(frozen=True, slots=True)
class Replicas:
    """A number of replicas to add or, if negative, to remove."""

    amount: int

    @property
    def text(self) -> str:
        return f"{self.amount:+d}"


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the current replicas, signed: `+10%` is 0.1."""

    amount: float

    @property
    def text(self) -> str:
        return f"{'-' if self.amount < 0 else '+'}{_decimal(abs(self.amount), 100)}%"


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """A rule that changes the pool by `step` once the comparison has held for `hold_s`."""

    metric: str
    comparison: Comparison
    threshold: Ratio | Seconds | TimesSlo
    step: Replicas | Share
    hold_s: float = 0.0
    names_seconds: bool = False  # True if the metric's name has its unit, so the threshold is written without one

    @property
    def text(self) -> str:
        plain = self.names_seconds and isinstance(self.threshold, Seconds)
        threshold = self.threshold.plain_text if plain and isinstance(self.threshold, Seconds) else self.threshold.text
        hold = f" for {duration_text(round(self.hold_s * 1000))}" if self.hold_s else ""
        return f"{self.metric} {self.comparison} {threshold}{hold}: {self.step.text}"


def _decimal(value: float, scale: int) -> str:
    """Return the shortest decimal of value x scale, without binary noise: 0.07 x 100 is `7`."""
    text = format(Decimal(repr(value)) * scale, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
