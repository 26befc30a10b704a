"""Prepare the folder of a base model: check it and write its manifest next to the files.

    shoal base manifest FOLDER                        at a terminal
    python -m functions.artifacts.base_folder ROOT    every folder of a volume, in the agent's image (manifests/jobs)

The folder is a model as vLLM reads it: `config.json` and safetensors, as downloaded. Other leftovers of a download
(`LEFTOVERS`) are rejected by name, or deleted with `clean`. A folder with a readable manifest is not hashed again,
because 140 GB take minutes.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts.base_facts import CONFIG_NAME, facts_of
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME

LEFTOVERS = (".cache", ".git", ".gitattributes", ".huggingface")  # left by git and huggingface_hub


@dataclass(frozen=True, slots=True)
class PreparedBase:
    directory: Path
    digest: Digest
    files: int
    total_bytes: int
    architecture: str
    layers: int
    was_there: bool  # True if the manifest existed, so that nothing was hashed

    def version_line(self, claim: str = "shoal-models") -> str:
        """Return the entry for a Model's `spec.versions` that pins this base."""
        return f'- {{name: v1, artifact: "pvc://{claim}/{self.directory.name}", digest: "{self.digest}"}}'


def prepare(directory: Path, *, clean: bool = False, again: bool = False) -> PreparedBase:
    """Write the folder's manifest unless a readable one with matching file sizes exists; raise ArtifactRefused if the
    folder is not a model. `clean` deletes leftovers of a download; `again` hashes the files even if a manifest exists.
    Blocks on the disk."""
    check_leftovers(directory, clean=clean)
    facts = facts_of(directory, names=())
    digest = None if again else _digest_there(directory)
    was_there = digest is not None
    if digest is None:
        digest = directories.write_manifest(directory)
    _, manifest = directories.read_manifest(directory)
    return PreparedBase(
        directory, digest, len(manifest.files), manifest.total_bytes, _architecture(directory), facts.layers, was_there
    )


def copy_plain(source: Path, target: Path) -> None:
    """Copy a folder of links, such as huggingface_hub's cache, as plain files without leftovers. `target` must be
    new."""
    if target.exists():
        raise ArtifactRefused(f"{target} exists already: name a new folder")
    shutil.copytree(source, target, symlinks=False, ignore=shutil.ignore_patterns(*LEFTOVERS, MANIFEST_NAME))


def check_leftovers(directory: Path, *, clean: bool) -> None:
    """Raise ArtifactRefused if the folder holds leftovers of a download; with `clean`, delete them instead."""
    for path in (directory / name for name in LEFTOVERS):
        if not (path.is_symlink() or path.exists()):
            continue
        if not clean:
            raise ArtifactRefused(f"{path.name} is not part of a model: delete it, or pass --clean")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _digest_there(directory: Path) -> Digest | None:
    """Return the digest of a readable manifest whose file sizes match the folder, else None."""
    try:
        digest, manifest = directories.read_manifest(directory)
    except (ArtifactMissing, ArtifactRefused):
        return None
    try:
        fits = all((directory / entry.path).lstat().st_size == entry.size_bytes for entry in manifest.files)
    except OSError:
        return None
    return digest if fits else None


def _architecture(directory: Path) -> str:
    named = json.loads((directory / CONFIG_NAME).read_bytes()).get("architectures") or ["unknown"]
    return str(named[0])


def main(arguments: list[str]) -> int:
    """Prepare every folder directly below `ROOT` that has a config.json, and print the results; `--clean` deletes
    leftovers of downloads. Return 1 if one failed or if there is none, else 0."""
    clean = "--clean" in arguments
    (root,) = [Path(each) for each in arguments if not each.startswith("--")]
    failed = 0
    folders = sorted(path.parent for path in root.glob(f"*/{CONFIG_NAME}"))
    for folder in folders:
        try:
            made = prepare(folder, clean=clean)
        except (ArtifactError, OSError) as error:
            failed += 1
            sys.stdout.write(f"{folder.name}: {error}\n")
            continue
        how = "manifest existed" if made.was_there else "manifest written"
        size = f"{made.files} files, {made.total_bytes / 1e9:.2f} GB"
        sys.stdout.write(f"{folder.name}: {made.architecture}, {made.layers} layers, {size}; {how}\n")
        sys.stdout.write(f"    {made.version_line()}\n")
    if not folders:
        sys.stdout.write(f"{root} has no folder with a {CONFIG_NAME}: copy the weights there first\n")
    return 1 if failed or not folders else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
