"""Effect of a replica's running and waiting requests on a prediction: a straight line over the tokens to be read.

    score = tokens x ms per token + ms
    ms per token = prefill_ms x (1 + outstanding / CROWD)
    ms           = (waiting requests + outstanding / CROWD) x service_ms

The line changes with a heartbeat and with this gateway's requests in flight there, not with the request. A replica's
row stores it for the heartbeat's figures (`replicas`). The loop over all rows recomputes it for the few replicas with
own requests (`prediction.least`; test_loop_equals_the_formula).
"""

CROWD = 20.0  # number of running requests that delay a new one as much as one waiting request


def crowding_line(outstanding: int, waiting: int, service_ms: float, prefill_ms: float) -> tuple[float, float]:
    """Return the milliseconds for each token to be read at a replica with these requests, and the fixed milliseconds
    for any new request."""
    crowd = outstanding / CROWD
    return prefill_ms * (1.0 + crowd), (waiting + crowd) * service_ms
