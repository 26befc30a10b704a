"""Errors of artifacts, named by what the caller does about them."""


class ArtifactError(Exception):
    """Base of all: the artifact cannot be used now. The text is for people."""


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

    kind = ""  # of failure, whatever it failed on; empty where the text names nothing else


class StoreRefused(StoreUnavailable):
    """The store is there and takes no such write: its operator looks at credentials, policies and what it offers."""


class StoreUnfit(StoreUnavailable):
    """The store does less than is needed, and will tomorrow: its operator uses another."""


class CacheFailed(ArtifactError):
    """The local disk refused (full, read-only, broken): free it; what is already cached goes on serving."""


class FetchUnderway(ArtifactError):
    """Another process of this node has been fetching the same digest for too long: try again later."""
