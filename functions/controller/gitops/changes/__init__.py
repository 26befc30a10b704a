"""Differences between two configurations, for the person who pushes to check against what was meant.

    for change in describe(old, new):
        print(change.words)     # tenant acme: tier standard -> enterprise

`describe` compares snapshots and compiles what is only declared yet, `facts` describes one entry, `wording` puts two
descriptions into one line.
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
