"""The `shoal` command: one file per command, and the few things that several share.

The top of the import law: it may use every role's code. What people see goes through `terminal`; what they can do about
a failure is the text of a `Refused`.
"""
