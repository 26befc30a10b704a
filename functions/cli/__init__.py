"""The `shoal` command: one file per command, and helpers that several commands share.

This package may import every role's code. Output goes through `terminal`. The error of `refused` carries a message that
says what failed and what to do about it.
"""
