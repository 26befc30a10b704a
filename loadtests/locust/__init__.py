"""Load profiles for Locust with thresholds: latency and failures as a fleet's tenants see them, locally or on staging.

    python -m loadtests.locust chat                     # on the fleet that `shoal env` names
    locust -f loadtests/locust/profiles/chat.py         # the same with Locust's web page

profiles/      one locustfile each: which requests, and how often
slo.yaml       each profile's default load and its thresholds
user.py        a user that sends requests, obeys retry-after and records times; client.py has its connections
hooks.py       options, workers, verdict and exit code, by Locust's events
answers.py, conversation.py, refusals.py, slo.py, spike.py    pure functions: answers, prompts, retries, verdicts, load
"""
