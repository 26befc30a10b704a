"""Admission as others have it, for comparison: whoever comes is dispatched; and shoal's without its overload ladder."""

from functions.api.ids import PoolName
from functions.decisions.admission.queue import Admission
from functions.decisions.overload.gateway_share import RoomLadder
from functions.decisions.overload.ladder import OFF, Rungs
from functions.gateway.admission.queue import AdmissionQueues, QueuedRequest
from functions.gateway.request.request import Admitted


class NoLadder(RoomLadder):
    """Nothing is shed, shifted or borrowed."""

    def look(self, admission: Admission, now_s: float, *, shiftable_ratio: float = 0.0) -> Rungs:
        return OFF


class OpenAdmission(AdmissionQueues):
    """Nobody waits, and nobody is refused."""

    def submit(self, exchange: QueuedRequest) -> None:
        exchange.dispatched()

    def shift_ratio(self, pool: PoolName) -> float:
        return 0.0

    def shifted(self, admitted: Admitted) -> None:
        """Nobody keeps count."""

    def returned(self, admitted: Admitted) -> None:
        """Nobody keeps count."""
