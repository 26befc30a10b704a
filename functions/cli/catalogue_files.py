"""The YAML file that declares a model, in the working copy of the current directory.

Files are read like in `shoal diff`. `catalogue_edit` makes the change, and the whole configuration is checked again
after the file is written. The change is printed as a diff, because its author commits it.
"""

import difflib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from functions.api.kinds.model import Model
from functions.api.loader import Loaded, load_directory
from functions.api.problems import ConfigInvalid
from functions.cli.catalogue_edit import CannotEdit
from functions.cli.context import CliContext, is_clone_of, toplevel_of
from functions.cli.diff import paths_below
from functions.cli.refused import CommandRefused
from functions.cli.validate import DEFAULT_FOLDERS

_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    model: Model
    root: Path
    name: str  # the file's path below `root`
    line: int

    @property
    def file(self) -> Path:
        return self.root / self.name


@dataclass(frozen=True, slots=True)
class FileChange:
    name: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{self.name}",
            f"b/{self.name}",
            n=2,
        )
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def find_declared(context: CliContext, model_id: str) -> DeclaredModel | None:
    """Return the model's declaration in the working copy of the current directory, or None."""
    root = working_copy(Path.cwd(), context.layout.gitops_dir)
    if root is None:
        return None
    for declared in _loaded(root, context).objects:
        if isinstance(declared.value, Model) and declared.value.spec.id == model_id:
            position = declared.document.place
            return DeclaredModel(declared.value, root, position.file, position.line)
    return None


def change_file(context: CliContext, declared: DeclaredModel, edit: Callable[[str], str]) -> FileChange:
    """Edit the model's file, check the whole configuration and return the change. If the configuration is no longer
    valid, restore the file and fail."""
    before = declared.file.read_bytes().decode()
    try:
        after = edit(before)
    except CannotEdit as error:
        raise CommandRefused(f"{declared.name}: {error}") from error
    if after != before:
        _replace(declared.file, after)
        try:
            _loaded(declared.root, context)
        except CommandRefused:
            _replace(declared.file, before)
            raise
    return FileChange(declared.name, before, after)


def show_change(change: FileChange, console: Console) -> None:
    for line in change.diff.splitlines():
        console.print(Text(line, style=_DIFF_STYLES.get(line[:1], "")), soft_wrap=True)


def working_copy(start: Path, gitops_dir: Path) -> Path | None:
    """Return the folder that holds the configuration: `start`, or the top of its working copy.

    Return None in another repository, such as the one in which an adapter was trained.
    """
    top = toplevel_of(start)
    if top is not None and is_clone_of(gitops_dir, top):
        return top
    folders = [folder for folder in (start, top) if folder is not None]
    return next((folder for folder in folders if any((folder / name).is_dir() for name in DEFAULT_FOLDERS)), None)


def _loaded(root: Path, context: CliContext) -> Loaded:
    try:
        return load_directory(paths_below(root, context.layout.gitops_dir), relative_to=root)
    except ConfigInvalid as error:
        raise CommandRefused(f"the configuration in {root} has mistakes:\n{error}") from error


def _replace(file: Path, text: str) -> None:
    """Replace the file atomically and keep its permissions."""
    mode = file.stat().st_mode
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(text.encode())
        Path(name).chmod(mode)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
