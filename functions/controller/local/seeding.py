"""Publishing the project's adapters to the local S3, so that the catalogue's artifact addresses resolve.

`registry/adapters/<tenant>/<name>/<version>/` becomes `s3://shoal-models/<tenant>/<name>/<version>`. Git is the truth
here: an adapter that was trained again replaces what its pointer pointed at, and so does one that an earlier build
published in a form that this one does not read. Blocks; run it in a thread.
"""

from dataclasses import dataclass
from pathlib import Path

from functions.artifacts.errors import ArtifactError
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import DEFAULT_BUCKET, S3Settings, S3Store, load_credentials
from functions.controller.local.context import PlanContext


@dataclass(frozen=True, slots=True)
class Seeded:
    published: tuple[str, ...]  # artifact addresses, present in the store now
    problems: tuple[str, ...]


def open_store(context: PlanContext) -> S3Store:
    return S3Store(S3Settings(context.s3_url, load_credentials(context.layout.secret("s3.json"))))


def seed_adapters(store: S3Store, adapters_dir: Path) -> Seeded:
    """Publish every version; one that is refused does not keep the others out."""
    published: list[str] = []
    problems: list[str] = []
    store.ensure_bucket()
    for directory in sorted(path for path in adapters_dir.glob("*/*/*") if path.is_dir()):
        uri = f"s3://{DEFAULT_BUCKET}/{'/'.join(directory.parts[-3:])}"
        try:
            publish_directory(store, directory, uri, replace=True)
            published.append(uri)
        except (ArtifactError, OSError) as error:
            problems.append(f"{uri}: {error}")
    return Seeded(tuple(published), tuple(problems))
