"""Every test of the SQL runs on both databases."""

from tests.registry.backends import url

__all__ = ["url"]
