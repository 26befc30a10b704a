"""Create an installation's buckets if they are missing, and test that the store does what shoal needs.

    python -m functions.artifacts.buckets https://s3.example.com shoal-models=/creds/registry.json shoal-batches=…

The test writes an object and deletes it again. A conditional write (`If-None-Match: *`) must succeed once and fail
the second time; the object must be readable and listed, and gone after its deletion. Publishers coordinate by
conditional writes: a store that ignores the header could run one batch twice. A Job runs this
(manifests/jobs/buckets), and so does each gateway before it works on batches.
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
    problem: str = ""  # empty if the bucket does what is needed


def try_bucket(store: S3Store, name: Callable[[], str] = lambda: secrets.token_hex(8)) -> Tried:
    """Create the bucket unless it exists, and test it. The result's `problem` says what the bucket cannot do and what
    to do about it; it is empty if the bucket is fit."""
    try:
        store.ensure_bucket()
        return Tried(store.bucket, find_problem(store, name))
    except ArtifactError as error:
        return Tried(store.bucket, f"{error}: create the bucket, or grant these credentials all rights on it")


def find_problem(store: S3Store, name: Callable[[], str] = lambda: secrets.token_hex(8)) -> str:
    """Return what an existing bucket cannot do and what to do about it, or ""; raise ArtifactError if it is
    unavailable.

    `store` must have `needs_conditions` set: otherwise it emulates conditional writes, and any bucket passes.
    """
    key = _TRIED_PREFIX + name()
    try:
        problem = _try_object(store, key)
    except StoreUnfit as error:
        return f"{error}: use a store that does"
    store.delete([key])
    if not problem and store.size_of(key) is not None:
        return "a deleted object still exists: turn off versioning of the bucket"
    return problem


def _try_object(store: S3Store, key: str) -> str:
    if not store.put_new(key, _BODY):
        return "a conditional write (If-None-Match: *) of a new object is refused: use a store that supports it"
    if store.put_new(key, _OTHER) or store.read_small(key, len(_OTHER)) != _BODY:
        return "a conditional write (If-None-Match: *) overwrites an existing object: use a store that supports it"
    if [found.key for found in store.list(key)] != [key]:
        return "a listing does not show what was written: use a store with consistent listings"
    return ""


def main(arguments: list[str]) -> int:
    """Create every bucket unless it exists, test it and print the result. The arguments are the endpoint URL and
    `BUCKET=CREDENTIALS_FILE` for each bucket. Return 0 if all of them do what is needed, else 1."""
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
        told = tried.problem or "exists and supports conditional writes"
        sys.stdout.write(f"{tried.bucket} at {endpoint_url}: {told}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
