"""What a run leaves alone while it lasts: Python's collector, and the gateways' log.

A run holds hundreds of thousands of objects for long and leaves no circles, so that the collector looks in vain.
Measured: with its usual thresholds it takes a fifth of a run's time (500 replicas, 20,000 requests: 4.8 s, without it
3.8). So it looks a hundred times as seldom, which still bounds what circles an actor may make.

Gateways warn of each request that is refused and each replica that fails: here that is what is counted.
"""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = (100_000, 50, 100)
_LOGS = ("functions.gateway", "functions.fleet")


@contextmanager
def seldom_collected() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def quiet_gateways() -> Iterator[None]:
    """Nothing below an error is logged."""
    usual = {name: logging.getLogger(name).level for name in _LOGS}
    for name in _LOGS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in usual.items():
            logging.getLogger(name).setLevel(level)
