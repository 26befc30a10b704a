"""The one error that people see: what could not be done, and what they can do about it."""


class Refused(Exception):
    """Printed to standard error; the command ends with status 1."""
