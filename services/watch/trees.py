"""Trees: the folders and rules that subscriptions share, in stored form and as the tracker uses them."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence

import apsw
import msgspec

from services.runtime.gitignore import gitignore
from services.runtime.roots import is_below
from services.shared.ignore_files import Patterns
from services.watch.database import select


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a tree; subscriptions with the same spec share it. Paths are real and sorted."""

    paths: tuple[str, ...]
    recursive: bool
    ignore: tuple[str, ...]
    include: tuple[str, ...]


class Tree:
    """A tracked tree. Changes are not logged until its first scan is `complete`."""

    def __init__(self, number: int, spec: Spec, *, complete: bool) -> None:
        self.number = number
        self.spec = spec
        self.complete = complete
        self.rules = Rules(spec.ignore, spec.include)
        self.roots = tuple(os.fsencode(path) for path in spec.paths)
        self.missing: set[bytes] = set()


def encode(spec: Spec) -> str:
    return msgspec.json.encode(spec, order="deterministic").decode()


def load(db: apsw.Connection) -> dict[int, Tree]:
    """Return all trees, by number."""
    rows = select(db, "SELECT tree, spec, complete FROM tree")
    return {
        number: Tree(number, msgspec.json.decode(spec, type=Spec), complete=bool(complete))
        for number, spec, complete in rows
    }


def outermost(paths: list[str]) -> tuple[str, ...]:
    """Return the sorted paths, without those inside another one."""
    return tuple(sorted({path for path in paths if not is_below(path, [other for other in paths if other != path])}))


class Rules:
    """The rules of a tree.

    Raises:
        ValueError: a pattern is invalid; the message names it.
    """

    def __init__(self, ignore: Sequence[str], include: Sequence[str]) -> None:
        for pattern in ignore:
            try:
                gitignore([pattern])
            except ValueError as error:
                raise ValueError(f"{pattern!r} is not a valid .gitignore pattern: {error}") from None
        self._patterns = Patterns(ignore)
        self.by_path = self._patterns.by_path
        """True if a verdict can depend on an entry's path, and so change when a folder above it is renamed."""
        self._included = re.compile("|".join(fnmatch.translate(pattern.casefold()) for pattern in include))

    def passes_over(self, above: str, name: str, *, is_folder: bool) -> bool:
        """True if the rules exclude an entry.

        Args:
            above: the folder that contains it, relative to the watched one; ends in `/`, or is empty for the latter.
        """
        if not is_folder and self._included.pattern and not self._included.match(name.casefold()):
            return True
        return self._patterns.verdict(above, name + "/" * is_folder) is True
