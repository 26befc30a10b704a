"""Locustfiles, one profile each, for `locust -f`."""
