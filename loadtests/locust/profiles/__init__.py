"""Locustfiles, one profile each; any of them goes to `locust -f`."""
