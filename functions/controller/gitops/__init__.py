"""Git as the configuration source: a bare repository whose branch is what the fleet should be.

`git` runs the program, `tree` and `blobs` read a commit, `source` turns it into checked objects; `repository` makes the
repository with its hooks, `review` judges a push, `record` and `following` remember what was tried and what is good.
"""
