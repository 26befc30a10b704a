"""What is usual at a time of the day, or of the week: a profile of slots, learnt slot by slot. Pure, bounded memory.

    a slot's level += 0.4 x (the slot's mean today - its level)        of today at most double counts, at least half

so that one odd day moves a level by at most 40 %, and a change that stays is learnt within days. Between the middles
of two slots the profile is a straight line. Worked example (test_worked_example_of_a_slot): a slot at 100 that has
160 today goes to 124; one that has 900 counts as 200 and goes to 140.

Neighbours: `forecast_methods` asks how much more is usual later than now.
"""

from dataclasses import dataclass, replace

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
SLOT_S = 600.0
_LEARNT = 0.4
_AT_MOST = 2.0


@dataclass(frozen=True, slots=True)
class Season:
    period_s: float
    slot_s: float = SLOT_S
    levels: tuple[float | None, ...] = ()
    open_slot: int | None = None  # counted since ever
    open_sum: float = 0.0
    open_count: int = 0

    @property
    def slots(self) -> int:
        return round(self.period_s / self.slot_s)

    def with_value(self, at_s: float, value: float) -> "Season":
        slot = int(at_s // self.slot_s)
        if slot == self.open_slot:
            return replace(self, open_sum=self.open_sum + value, open_count=self.open_count + 1)
        closed = self._closed()
        return replace(closed, open_slot=slot, open_sum=value, open_count=1)

    def at(self, at_s: float) -> float | None:
        """What is usual then; None where that is not known yet."""
        if not self.levels:
            return None
        place = at_s / self.slot_s - 0.5
        left = int(place // 1)
        share = place - left
        before, after = self.levels[left % self.slots], self.levels[(left + 1) % self.slots]
        if before is None or after is None:
            return None
        return before + share * (after - before)

    def _closed(self) -> "Season":
        if self.open_slot is None or not self.open_count:
            return self
        mean = self.open_sum / self.open_count
        levels = list(self.levels or (None,) * self.slots)
        place = self.open_slot % self.slots
        level = levels[place]
        if level is None:
            levels[place] = mean
        else:
            heard = min(max(mean, level / _AT_MOST), level * _AT_MOST) if level > 0.0 else mean
            levels[place] = level + _LEARNT * (heard - level)
        return replace(self, levels=tuple(levels))
