"""What differs between two configurations, in words that the person who pushes can check against what was meant.

    for change in describe(old, new):
        print(change.words)     # tenant acme: tier standard -> enterprise

`describe` compares snapshots, `facts` says what there is to tell of each entry, `wording` puts two sets of facts into
one line, `summary` keeps thousands readable, `configurations` compiles what is only declared yet.
"""

from functions.controller.gitops.changes.configurations import changes_of, compiled
from functions.controller.gitops.changes.describe import Change, describe
from functions.controller.gitops.changes.summary import Summary, summarize

__all__ = ["Change", "Summary", "changes_of", "compiled", "describe", "summarize"]
