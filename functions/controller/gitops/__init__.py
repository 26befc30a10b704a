"""Git as the configuration source: a bare repository whose branch is what the fleet should be.

`git` runs the program, `source` reads a commit and turns it into checked objects, `branch` watches and judges a tip;
`repository` makes the repository with its hooks, `review` judges a push, `record` and `following` remember what was
tried and what is good.
"""
