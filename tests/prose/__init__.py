"""The check of the tree's prose that `make lint` runs."""
