"""Errors of artifacts, named by what the caller should do about them."""


class ArtifactError(Exception):
    """Base class: the artifact cannot be used now. The text is written for people."""


class ArtifactRefused(ArtifactError):
    """The artifact itself is wrong and stays wrong: publish a corrected one."""


class ArtifactCorrupt(ArtifactError):
    """Bytes are not what their digest promises: fetch again later; if that repeats, publish again."""


class ArtifactMissing(ArtifactError):
    """The store has no such pointer, manifest or chunk: publish it, or correct the name."""


class VersionTaken(ArtifactError):
    """The artifact's URI already points at other content: publish under a new version."""


class StoreUnavailable(ArtifactError):
    """The store cannot be reached, is overloaded or refuses our credentials: try again later, with backoff."""

    kind = ""  # kind of failure, regardless of the object; empty if the text names no object


class StoreRefused(StoreUnavailable):
    """The store rejects the write permanently: its operator must check credentials, policies and supported features."""


class StoreUnfit(StoreUnavailable):
    """The store lacks a feature that is needed, and will not gain it: its operator must use another one."""


class CacheFailed(ArtifactError):
    """The local disk failed (full, read-only, broken): free space or repair it. Cached artifacts remain usable."""


class FetchUnderway(ArtifactError):
    """Another process of this node has been fetching the same digest for too long: try again later."""
