"""Buckets of an installation: made where they are missing, and tried for what shoal needs of a store.

    python -m functions.artifacts.buckets https://s3.example.com shoal-models=/creds/registry.json shoal-batches=…

Tried with an object that is deleted again: a conditional write (`If-None-Match: *`) writes once and then refuses, what
was written is read back, listed and gone after its deletion. Two publishers agree by conditional writes; a store that
takes the header and writes all the same would let one batch run twice. Run by a Job (manifests/jobs/buckets), and by
each gateway before it works on batches.
"""

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from functions.artifacts.errors import ArtifactError, StoreUnfit
from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials

_TRIED_PREFIX = "shoal-tried/"
_BODY, _OTHER = b"one", b"another"


@dataclass(frozen=True, slots=True)
class Tried:
    bucket: str
    problem: str = ""  # empty: it does what is needed


def try_bucket(store: S3Store, name: Callable[[], str] = lambda: secrets.token_hex(8)) -> Tried:
    """Make the bucket unless it is there, and try it; says what it cannot do, and what to do about that."""
    try:
        store.ensure_bucket()
        return Tried(store.bucket, lacking(store, name))
    except ArtifactError as error:
        return Tried(store.bucket, f"{error}: make the bucket, or give these credentials all rights on it")


def lacking(store: S3Store, name: Callable[[], str] = lambda: secrets.token_hex(8)) -> str:
    """What a bucket that is there does not do, and what to do about that, or ""; ArtifactError where it does not
    answer. Of a store that `needs_conditions`: one that has none would be looked at first, and seem to have them."""
    key = _TRIED_PREFIX + name()
    try:
        problem = _try_object(store, key)
    except StoreUnfit as error:
        return f"{error}: use a store that does"
    store.delete([key])
    if not problem and store.size_of(key) is not None:
        return "an object is there after its deletion: is versioning of the bucket on? Turn it off"
    return problem


def _try_object(store: S3Store, key: str) -> str:
    if not store.put_new(key, _BODY):
        return "a conditional write (If-None-Match: *) is refused where nothing is: use a store that knows them"
    if store.put_new(key, _OTHER) or store.read_small(key, len(_OTHER)) != _BODY:
        return "a conditional write (If-None-Match: *) overwrites what is there: use a store that honours them"
    if [found.key for found in store.list(key)] != [key]:
        return "a listing does not show what was written: use a store with consistent listings"
    return ""


def main(arguments: list[str]) -> int:
    """0 where every bucket is there and does what is needed."""
    endpoint_url, *buckets = arguments
    failed = 0
    for each in buckets:
        bucket, _, file = each.partition("=")
        try:
            store = S3Store(S3Settings(endpoint_url, load_credentials(Path(file)), bucket, needs_conditions=True))
        except (CredentialsInvalid, ValueError) as error:
            tried = Tried(bucket, str(error))
        else:
            tried = try_bucket(store)
            store.close()
        failed += bool(tried.problem)
        told = tried.problem or "is there, and does conditional writes"
        sys.stdout.write(f"{tried.bucket} at {endpoint_url}: {told}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
