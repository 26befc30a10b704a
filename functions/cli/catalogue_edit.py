"""Edits of a Model's YAML: move a channel to another version, add a version, or add a version's digest.

Only the text of the changed value is replaced. Comments, quotes, order and line ends stay byte for byte. As data, the
result equals the input except for the one change. If that is impossible, for example because of a shared anchor, the
edit is refused and the error names the line. Pure: text in, text out. `catalogue_files` finds and writes the file.
"""

import copy
import io
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

BARE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")


class CannotEdit(Exception):
    """A program cannot make this edit. The message says what to write and, if possible, in which line."""


def with_channel(text: str, model_id: str, channel: str, version: str) -> str:
    """Return the file's text with the channel at the version; the channel is added if the model has none of that name.
    Raise CannotEdit if that needs a person."""
    index, spec = _spec_of(text, model_id)
    channels = _child(spec, "channels")
    wanted = f"{_quoted(channel)}: {_quoted(version)}"
    if channels is None:
        changed = _after(text, _last(spec), f"\n{' ' * _column(spec)}channels: {{{wanted}}}")
    elif not isinstance(channels, MappingNode) or channels.anchor or not _inside(channels, spec):
        raise CannotEdit(f"line {channels.start_mark.line + 1}: add {wanted!r} to spec.channels by hand")
    else:
        changed = _with_item(text, channels, channel, version, wanted)
    return _checked(text, changed, index, lambda spec: _set_channel(spec, channel, version), wanted)


def with_version(text: str, model_id: str, name: str, artifact: str, digest: str) -> str:
    """Return the file's text with a version added at the end of the list. Raise CannotEdit if that needs a person."""
    index, spec = _spec_of(text, model_id)
    versions = _child(spec, "versions")
    wanted = f'{{name: {_quoted(name)}, artifact: "{artifact}", digest: "{digest}"}}'
    if not isinstance(versions, SequenceNode) or not versions.value or not _inside(versions, spec):
        raise CannotEdit(f"add {wanted} to spec.versions of {model_id} by hand")
    if versions.flow_style:
        changed = _insert(text, versions.value[-1].end_mark.index, f", {wanted}")
    else:
        changed = _after(text, _last(versions), f"\n{' ' * _column(versions)}- {wanted}")
    entry = {"name": name, "artifact": artifact, "digest": digest}
    return _checked(text, changed, index, lambda spec: spec["versions"].append(entry), wanted)


def with_digest(text: str, model_id: str, name: str, digest: str) -> str:
    """Return the file's text with the digest added to a version that was declared by its artifact's address alone.
    Raise CannotEdit if that needs a person."""
    index, spec = _spec_of(text, model_id)
    versions = _child(spec, "versions")
    wanted = f'digest: "{digest}"'
    entries = versions.value if isinstance(versions, SequenceNode) else []
    found = [entry for entry in entries if getattr(_child(entry, "name"), "value", None) == name]
    if len(found) != 1 or not isinstance(found[0], MappingNode) or not _inside(found[0], spec):
        raise CannotEdit(f"add {wanted} to the version {name} of {model_id} by hand")
    changed = _with_new_item(text, found[0], wanted)
    return _checked(text, changed, index, lambda spec: _set_digest(spec, name, digest), wanted)


def line_of_channels(text: str, model_id: str) -> int:
    """Return the line number of the channels, or else of `spec`, from 1."""
    _, spec = _spec_of(text, model_id)
    return int((_child(spec, "channels") or spec).start_mark.line) + 1


def _with_item(text: str, channels: MappingNode, channel: str, version: str, wanted: str) -> str:
    value = _child(channels, channel)
    if value is None:
        return _with_new_item(text, channels, wanted)
    if not isinstance(value, ScalarNode) or not _inside(value, channels) or value.style in ("|", ">"):
        raise CannotEdit(f"line {channels.start_mark.line + 1}: set {channel} to {version} by hand")
    start, end = value.start_mark.index, value.end_mark.index
    mark = value.style or ""
    return text[:start] + (f"{mark}{version}{mark}" if mark else _quoted(version)) + text[end:]


def _with_new_item(text: str, channels: MappingNode, wanted: str) -> str:
    if not channels.value:
        return text[: channels.start_mark.index] + f"{{{wanted}}}" + text[channels.end_mark.index :]
    if channels.flow_style:
        return _insert(text, channels.value[-1][1].end_mark.index, f", {wanted}")
    return _after(text, _last(channels), f"\n{' ' * _column(channels)}{wanted}")


def _spec_of(text: str, model_id: str) -> tuple[int, MappingNode]:
    """Return the index of the model's document and its `spec`. Raise CannotEdit if the file does not declare the
    model."""
    for index, document in enumerate(_documents(text)):
        spec = _child(document, "spec")
        id_ = _child(spec, "id")
        if isinstance(spec, MappingNode) and isinstance(id_, ScalarNode) and id_.value == model_id:
            kind = _child(document, "kind")
            if isinstance(kind, ScalarNode) and kind.value == "Model":
                return index, spec
    raise CannotEdit(f"the file has no Model with the id {model_id}")


def _documents(text: str) -> list[Node | None]:
    try:
        return list(YAML().compose_all(io.StringIO(text)))
    except YAMLError as error:
        raise CannotEdit(f"the file is not valid YAML: {error}") from error


def _child(node: Node | None, key: str) -> Node | None:
    if not isinstance(node, MappingNode):
        return None
    return next((value for name, value in node.value if isinstance(name, ScalarNode) and name.value == key), None)


def _inside(node: Node, parent: Node) -> bool:
    """Return True if the node is written inside the parent, has no anchor and is not an alias."""
    written = parent.start_mark.index <= node.start_mark.index and node.end_mark.index <= parent.end_mark.index
    return bool(written) and not node.anchor


def _last(node: Node) -> int:
    """Return the end of the last value's text. A block collection's own end mark is behind its comments. Raise
    CannotEdit if the value is a block text."""
    while isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style and node.value:
        node = node.value[-1][1] if isinstance(node, MappingNode) else node.value[-1]
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        raise CannotEdit(f"line {node.start_mark.line + 1}: add it after this text by hand")
    return int(node.end_mark.index)


def _column(node: Node) -> int:
    return int(node.start_mark.column)


def _insert(text: str, at: int, added: str) -> str:
    return text[:at] + added + text[at:]


def _after(text: str, at: int, added: str) -> str:
    """Return the text with `added` inserted after the line that contains `at`, including its comment."""
    end = text.find("\n", at)
    if end < 0:
        return text + added + "\n"
    if text[end - 1 : end] == "\r":
        return _insert(text, end - 1, added.replace("\n", "\r\n"))
    return _insert(text, end, added)


def _quoted(name: str) -> str:
    """Quote a name unless every YAML version reads it as text: `v2`, but "1.0", "null", and "on" (YAML 1.1)."""
    as_text = set(name) <= BARE and YAML(typ="safe", pure=True).load(name) == name == yaml.safe_load(name)
    return name if as_text else f'"{name}"'


def _set_channel(spec: dict[str, Any], channel: str, version: str) -> None:
    spec["channels"] = {**(spec.get("channels") or {}), channel: version}


def _set_digest(spec: dict[str, Any], name: str, digest: str) -> None:
    next(entry for entry in spec["versions"] if entry["name"] == name)["digest"] = digest


def _checked(before: str, after: str, index: int, change: Any, wanted: str) -> str:
    """Return `after`. Raise CannotEdit if its data differs from `before` with the change made."""
    meant = _data(before)
    expected = copy.deepcopy(meant)
    change(expected[index]["spec"])
    if _data(after) != expected:
        raise CannotEdit(f"write {wanted!r} by hand: the file's anchors or layout do not let a program do it")
    return after


def _data(text: str) -> list[Any]:
    try:
        return list(YAML(typ="safe", pure=True).load_all(io.StringIO(text)))
    except YAMLError as error:
        raise CannotEdit(f"the edited file would not be valid YAML: {error}") from error
