"""Classification of ServeGen's clients into people and jobs, by the burstiness of their requests.

The recording has no classes. A client is a job if its coefficient of variation is above 3, as a rate-weighted mean
over its windows: it sends hundreds of requests at one moment and then none, so no person reads along. Jobs use the
batch band, which promises a start within minutes; all other clients are interactive. Jobs send 54 % of
language_m-large's requests over two weeks, and 41 % of -small's.

Neighbours: `workload.servegen` reads the clients; `day` uses the bands.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from functions.simulator.workload.request import WorkloadRequest
from studies.scaling.load import BATCH
from studies.servegen.clients import Clients

JOB_CV = 3.0


def jobs(clients: Clients, above_cv: float = JOB_CV) -> frozenset[str]:
    """Return the names of the clients that are jobs."""
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
