"""The error type that every command reports to its user."""


class CommandRefused(Exception):
    """A command failed.

    The message says why and what to do; `main` prints it to standard error and exits with status 1.
    """
