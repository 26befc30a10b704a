"""Product rules broken on purpose: each mutant is a plausible mistake, with the check that must find it.

A harness that never fails proves nothing. Each mutant runs a few seeds with one function of the product replaced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from functions.decisions.quota.reservation import Reservation
from functions.fleet.view import FleetView
from functions.gateway.gateway import Gateway
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request import ending
from functions.gateway.request.attempt import Attempt
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.routing.router import Router
from functions.gateway.routing.splits import Splits


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    owner: type | ModuleType
    function: str
    mutate: Callable[[Any], Any]  # from the real function to the mistaken one
    seen_by: str  # prefix of the expected violation
    shows_in: int = 0  # a seed that is tried first

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds to try; one of them must reveal the mutant."""
        return (self.shows_in, *(seed for seed in range(12) if seed != self.shows_in))


def _goes_on_elsewhere(real: Any) -> Any:
    def attempt_broke(exchange: RequestExchange, attempt: Attempt, answer: Any, failure: Any, detail: str) -> None:
        exchange._blame(attempt, failure, detail)
        exchange.route()

    return attempt_broke


def _forgets_that_it_settled(real: Any) -> Any:
    def settle(reservation: Reservation, *figures: Any) -> bool:
        first: bool = real(reservation, *figures)
        reservation.state = "extended"
        return first

    return settle


def _does_nothing(real: Any) -> Any:
    return lambda *_: None


def _finds_nobody(real: Any) -> Any:
    return lambda *_: {}


def _leaves_the_engine_alone(real: Any) -> Any:
    def drop(attempt: Attempt) -> None:
        attempt._leave()

    return drop


def _says_nothing_of_the_error(real: Any) -> Any:
    def lose(exchange: RequestExchange, attempt: Attempt, answer: Any) -> None:
        exchange.sink.end(b"data: [DONE]\n\n")
        ending.end(exchange, answer.status, answer.code)

    return lose


def _begins_after_the_end(real: Any) -> Any:
    def cut_short(gateway: Gateway) -> None:
        real(gateway)
        gateway.services.state.drain_is_over = False

    return cut_short


def _remembers_no_session(real: Any) -> Any:
    return lambda *_: None


def _answers_whole_twice(real: Any) -> Any:
    def streamed(exchange: RequestExchange, attempt: Attempt, out: bytes) -> None:
        real(exchange, attempt, out)
        if attempt.events == 3:
            real(exchange, attempt, out)

    return streamed


MUTANTS = (
    Mutant("retry after bytes", RequestExchange, "attempt_broke", _goes_on_elsewhere, "I2 first token", 2),
    Mutant("settled twice", Reservation, "settle", _forgets_that_it_settled, "I1 settlement"),
    Mutant("a place is not given back", Router, "record_over", _does_nothing, "I5 bounded"),
    Mutant("a tenant's place is not given back", RequestQuota, "leave", _does_nothing, "I1 settlement"),
    Mutant("the engine is not told to stop", Attempt, "drop", _leaves_the_engine_alone, "I5 bounded", 4),
    Mutant("silence means nothing", FleetView, "expire", _finds_nobody, "detection", 13),
    Mutant("a broken stream ends as a whole one", ending, "end_broken_stream", _says_nothing_of_the_error, "I3", 2),
    Mutant("a piece is passed on twice", RequestExchange, "attempt_streamed", _answers_whole_twice, "I3 text", 2),
    Mutant("no session is remembered", Splits, "_group_of", _remembers_no_session, "I9 one version", 8),
    Mutant("begun after the drain's end", Gateway, "cut_short", _begins_after_the_end, "I1 settlement", 34),
    Mutant("the deadline is never checked", RequestExchange, "check", _does_nothing, "I7 starvation", 2),
)
