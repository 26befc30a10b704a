"""Git as the configuration source: a bare repository whose branch declares the desired fleet.

`git` runs the program, `source` reads a commit and parses it into checked objects, `branch` watches and judges a tip,
`repository` creates the repository with its hooks, `review` judges a push, `record` and `following` store which
revisions were tried and which are good.
"""
