"""The overload ladder compared with other methods when one model suddenly receives five times the requests."""
