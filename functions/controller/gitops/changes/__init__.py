"""Differences between two configurations, for checking a push.

    for change in describe(old, new):
        print(change.words)     # tenant acme: tier standard -> enterprise

`describe` compares snapshots and compiles declarations; `facts` describes one entry.
"""

from functions.controller.gitops.changes.describe import (
    Change,
    Summary,
    changes_of,
    changes_to_running,
    compiled,
    describe,
    summarize,
)

__all__ = ["Change", "Summary", "changes_of", "changes_to_running", "compiled", "describe", "summarize"]
