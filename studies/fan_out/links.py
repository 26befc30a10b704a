"""A link as a token bucket: what is reserved goes through one after the other, at the link's rate.

The real node's `Bandwidth` does the same with the bytes of all its transfers. Worked example (test_links_share): two
transfers of two slices of 1 MB on a link of 1 MB/s, begun together, take turns and end after 3 and 4 s.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    bytes_per_s: float
    free_at_s: float = 0.0

    def take(self, size_bytes: float, now_s: float) -> float:
        """When these bytes will have gone through."""
        self.free_at_s = max(self.free_at_s, now_s) + size_bytes / self.bytes_per_s
        return self.free_at_s
