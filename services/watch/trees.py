"""Trees: the folders and rules that subscriptions share, as they are stored and as the tracker uses them."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence

import apsw
import msgspec

from linckia.services.runtime.gitignore import gitignore
from linckia.services.runtime.ignore_files import Patterns
from linckia.services.runtime.roots import is_below
from linckia.services.watch.store import select


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree is of; two subscriptions of the same spec share it. Paths are real and sorted."""

    paths: tuple[str, ...]
    recursive: bool
    ignore: tuple[str, ...]
    include: tuple[str, ...]


class Tree:
    """A tree that is being tracked. Until its first scan is `complete` its changes are not logged."""

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
    """All trees, by number."""
    rows = select(db, "SELECT tree, spec, complete FROM tree")
    return {
        number: Tree(number, msgspec.json.decode(spec, type=Spec), complete=bool(complete))
        for number, spec, complete in rows
    }


def outermost(paths: list[str]) -> tuple[str, ...]:
    """The paths sorted, without those inside another."""
    return tuple(sorted({path for path in paths if not is_below(path, [other for other in paths if other != path])}))


class Rules:
    """The rules of one subscription.

    Raises:
        ValueError: a pattern cannot be understood; says which.
    """

    def __init__(self, ignore: Sequence[str], include: Sequence[str]) -> None:
        for pattern in ignore:
            try:
                gitignore([pattern])
            except ValueError as error:
                raise ValueError(f"{pattern!r} is no pattern of a .gitignore file: {error}") from None
        self._patterns = Patterns(ignore)
        self.by_path = self._patterns.by_path
        """Whether a verdict may hang on where an entry is, and change when a folder above it is renamed."""
        self._included = re.compile("|".join(fnmatch.translate(pattern.casefold()) for pattern in include))

    def passes_over(self, above: str, name: str, *, is_folder: bool) -> bool:
        """Whether the rules leave the entry out.

        Args:
            above: the folder that holds it, relative to the watched one, ending in `/` unless it is that one.
        """
        if not is_folder and self._included.pattern and not self._included.match(name.casefold()):
            return True
        return self._patterns.verdict(above, name + "/" * is_folder) is True
