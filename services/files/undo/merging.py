"""Three-way merges of texts, by libgit2, which writes the three versions to a folder of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


class CannotMerge(Exception):
    """libgit2 failed; the message says why."""


@contextlib.contextmanager
def _failures(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        raise CannotMerge(str(error)) from None


def merged(folder: Path, base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return `ours` with the changes that lead from `base` to `theirs`; None if they are to the same lines.

    Args:
        folder: where a temporary folder may be made.

    Raises CannotMerge.
    """
    # Few clients ever merge.
    import pygit2
    from pygit2.enums import ConfigLevel, FileMode, Option

    for level in (ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL):
        # A user's settings of git may not be read here, and say nothing about merges.
        pygit2.option(Option.SET_SEARCH_PATH, level, "")
    with tempfile.TemporaryDirectory(dir=folder, prefix="merge-") as place, _failures(pygit2.GitError):
        repository = pygit2.init_repository(place, bare=True)
        base_entry, our_entry, their_entry = [
            # One character for each byte, since it returns a text.
            pygit2.IndexEntry("file", repository.create_blob(version.decode("latin-1").encode()), FileMode.BLOB)
            for version in (base, ours, theirs)
        ]
        result = repository.merge_file_from_index(base_entry, our_entry, their_entry, use_deprecated=False)
        return result.contents.encode("latin-1") if result is not None and result.automergeable else None
