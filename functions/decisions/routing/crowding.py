"""What those who run and wait at a replica make of its prediction: a straight line over the tokens to be read.

    score = tokens x ms per token + ms
    ms per token = prefill_ms x (1 + outstanding / CROWD)
    ms           = (those who wait + outstanding / CROWD) x service_ms

It changes with a heartbeat and with what this gateway sends there, not with the request: a replica's row has it for
what the heartbeat says (`replicas`), and the loop over all rows makes it anew for the few that ours run at
(`prediction.least`; test_the_loop_is_the_formula).
"""

CROWD = 20.0  # so many requests that run delay a newcomer as much as one that waits


def line(outstanding: int, waiting: int, service_ms: float, prefill_ms: float) -> tuple[float, float]:
    """Milliseconds for each token to be read, and those that any newcomer has before it."""
    crowd = outstanding / CROWD
    return prefill_ms * (1.0 + crowd), (waiting + crowd) * service_ms
