"""The contents of a commit's files, by object id: what was read for one commit is not read again for the next.

Holds the files of the commit read last, nothing else; the bound is that of a configuration.
"""

from collections.abc import Iterable

from functions.controller.gitops.git import Git, GitFailed


class Blobs:
    """Owned by one reader at a time."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def read(self, git: Git, object_ids: Iterable[str]) -> dict[str, bytes]:
        """The contents by object id; GitFailed where one is not there."""
        wanted = set(object_ids)
        missing = sorted(wanted - self._known.keys())
        contents = {each: self._known[each] for each in wanted & self._known.keys()}
        if missing:
            asked = "".join(f"{each}\n" for each in missing).encode()
            contents |= _parse(git.run("cat-file", "--batch", send=asked), missing)
        self._known = contents
        return contents


def _parse(output: bytes, asked: list[str]) -> dict[str, bytes]:
    """`<id> blob <size>\\n<content>\\n` for each object, in the order asked."""
    contents: dict[str, bytes] = {}
    position = 0
    for object_id in asked:
        end = output.find(b"\n", position)
        head = output[position:end].split()
        if end < 0 or len(head) != 3 or head[0].decode() != object_id or head[1] != b"blob":
            raise GitFailed(f"the object {object_id} cannot be read: {output[position : max(end, position)][:80]!r}")
        size_bytes = int(head[2])
        contents[object_id] = output[end + 1 : end + 1 + size_bytes]
        position = end + 1 + size_bytes + 1
    return contents
