"""Watch over policies that are not obeyed: which ones, as of the last fleet report, and for how long.

Reports of gateways and agents count once they have lasted (`LASTING_S`): a gateway that starts, or a replica that has
just answered its first request, is no finding. A finding that is no longer reported ends immediately. If the bus is
away, the last report stays.

    BaseStagesNotObeyed    stages of a base that has several versions: its channel moves as a whole
    StorageUriElsewhere    a pool's service names another version than its base's channel

Neighbours: `functions.controller.unobeyed` finds the rest, `kubernetes.versions.staged` these two, `writes` uses
them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from functions.api.loader import Loaded
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.controller.kubernetes.versions.staged import stage_findings
from functions.controller.unobeyed.declared import declared_findings
from functions.controller.unobeyed.findings import Unobeyed, by_key, objects_by_reason
from functions.controller.unobeyed.observed import LASTING_S, OBSERVED, ObservedFleet, observed_findings
from functions.fleet.pool_board import PoolReport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObedienceFindings:
    findings: Mapping[str, tuple[Unobeyed, ...]] = field(default_factory=dict)  # by object
    has_looked: bool = False  # policies were checked since this process leads
    has_heard: bool = False  # a fleet report has arrived since this process leads

    def may_clear(self, reason: str) -> bool:
        """Return True if a finding of this reason that is not listed is known to be over. A new leader knows nothing
        yet: it must have judged, and for observed reasons have received a report."""
        return self.has_looked and (self.has_heard or reason not in OBSERVED)


NOTHING_KNOWN = ObedienceFindings()


class Obedience:
    """Current findings, owned by one event loop. Times are arguments, in monotonic seconds."""

    def __init__(
        self, metrics: ControllerMetrics, on_change: Callable[[Sequence[Unobeyed]], None], *, delivers: bool = False
    ) -> None:
        """`on_change` receives the new findings when the judgement changes. `delivers`: this controller writes the
        services."""
        self._delivers = delivers
        self.judgement = NOTHING_KNOWN
        self._metrics = metrics
        self._on_change = on_change
        self._heard: PoolReport | None = None  # the last known report
        self._since: dict[Unobeyed, float] = {}
        self._declared: tuple[str, tuple[Unobeyed, ...]] = ("", ())  # findings of the last revision

    def reset(self) -> None:
        """Forget the findings and clear the metric at the end of a term: another leader takes over."""
        self.judgement, self._heard, self._since = NOTHING_KNOWN, None, {}
        self._metrics.set_disobeyed({})

    def update(self, revision: str, loaded: Loaded, word: ObservedFleet, now_s: float) -> None:
        if word.is_known:
            self._heard = word.report
        observed = observed_findings(loaded.objects, replace(word, report=self._heard))
        told = [*self._of_declarations(revision, loaded), *observed]
        self._since = {each: self._since.get(each, now_s) for each in told}
        settled = [each for each in told if now_s - self._since[each] >= LASTING_S.get(each.reason, 0.0)]
        self._set_judgement(ObedienceFindings(by_key(settled), has_looked=True, has_heard=self._heard is not None))

    def _of_declarations(self, revision: str, loaded: Loaded) -> tuple[Unobeyed, ...]:
        if self._declared[0] != revision:
            stages = stage_findings(loaded.objects, delivers=self._delivers)
            self._declared = (revision, (*declared_findings(loaded.objects), *stages))
        return self._declared[1]

    def _set_judgement(self, judgement: ObedienceFindings) -> None:
        before, self.judgement = self.judgement, judgement
        if before == judgement:
            return
        known = {each for findings in before.findings.values() for each in findings}
        new = [each for findings in judgement.findings.values() for each in findings if each not in known]
        for finding in new:
            _log.warning("%s is not obeyed (%s): %s", finding.key, finding.reason, finding)
        for key in before.findings.keys() - judgement.findings.keys():
            _log.info("%s is obeyed again", key)
        self._metrics.set_disobeyed(objects_by_reason(each for found in judgement.findings.values() for each in found))
        self._on_change(new)
