"""Which entries the index leaves out: the patterns of the setting `ignore`, as git writes them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pathspec import GitIgnoreSpec

from services.files import paths
from services.files.index.listing import Ignored


def rules(patterns: Sequence[str], roots: Sequence[str]) -> Ignored | None:
    """The rules, relative to the root that an entry lies below; None where nothing is ignored.

    Raises:
        ValueError: a pattern cannot be understood.
    """
    if not patterns:
        return None
    spec = GitIgnoreSpec.from_lines(patterns)
    # A pattern without a slash inside is about the name alone, which most are and many names are alike.
    of_names = all("/" not in pattern.rstrip("/") for pattern in patterns)

    @functools.lru_cache(maxsize=65_536)
    def matches(path: str) -> bool:
        return spec.match_file(path)

    def ignored(folder: str, name: str, is_folder: bool) -> bool:
        slash = "/" if is_folder else ""
        if of_names:
            return matches(name + slash)
        for root in roots:
            if folder.startswith(paths.as_folder(root)):
                return spec.match_file(folder[len(paths.as_folder(root)) :] + name + slash)
        return matches(name + slash)

    return ignored
