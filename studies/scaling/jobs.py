"""Who of ServeGen's clients are people, and who are jobs: a recording has no classes, but it has how they come.

A client whose requests come with a coefficient of variation above 3, in the mean over the windows in which it asks and
by its rate, sends hundreds at one moment and then nothing: nobody reads along. Those ask in the batch band, which
promises to begin within minutes; all others are interactive. Of language_m-large's requests 54 % are such jobs' over
two weeks, of -small's 41 %.

Neighbours: `workload.servegen` reads them; `day` asks with the bands.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from functions.simulator.workload.request import WorkloadRequest
from studies.scaling.load import BATCH
from studies.servegen.clients import Clients

JOB_CV = 3.0


def jobs(clients: Clients, above_cv: float = JOB_CV) -> frozenset[str]:
    """Names of the clients that are jobs."""
    rates, squares = np.zeros(len(clients.names)), np.zeros(len(clients.names))
    for window in clients.windows.values():
        np.add.at(rates, window.owners, window.rates_per_s)
        np.add.at(squares, window.owners, window.rates_per_s * window.cvs**2)
    mean_squares = squares / np.maximum(rates, 1e-12)
    return frozenset(name for name, square in zip(clients.names, mean_squares, strict=True) if square > above_cv**2)


def with_bands(workload: Iterable[WorkloadRequest], patient: frozenset[str]) -> Iterator[WorkloadRequest]:
    for asked in workload:
        if asked.tenant in patient:
            asked.band = BATCH
        yield asked
