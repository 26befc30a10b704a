"""Load profiles for Locust, judged by thresholds: what a fleet's tenants see, on one machine or on staging.

    python -m loadtests.locust chat                     # on the fleet that `shoal env` names
    locust -f loadtests/locust/profiles/chat.py         # the same with Locust's page

profiles/      one locustfile each: who asks for what, how often
slo.yaml       each profile's load where none is said, and its thresholds
user.py        a user that asks, obeys refusals, and writes down times; client.py below it has the connections
hooks.py       options, workers, verdict and exit code, by Locust's events
answers.py, conversation.py, refusals.py, slo.py, spike.py    what was answered, said, decided: pure
"""
