"""Ignore files (`.gitignore` and similar) with git's rules, for services that walk folders."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs
from pathspec import GitIgnoreSpec

from services.runtime.gitignore import MEMORY_BYTES, PROBE, gitignore
from services.runtime.roots import OutsideRoots, Roots, printable
from services.shared.linear import BadPattern, searching

IGNORE_FILES = (".gitignore", ".ignore", ".linckiaignore")
"""Names of ignore files, in increasing order of precedence."""

VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})
GENERATED = frozenset(
    {
        "node_modules", "bower_components", "__pycache__", ".venv", ".eggs", ".mypy_cache", ".pytest_cache", ".tox",
        ".nox", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".gradle", ".terraform", ".next", ".nuxt",
    }
)  # fmt: skip
"""Folders that tools generate and can generate again."""


MAX_BYTES = 1 << 20
MAX_WEIGHT = 16_384
"""Limit on patterns, wildcards and slashes in one folder's files; anything beyond is machine-made and ignored."""


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The patterns of one folder's ignore files, combined with those of the folders above it.

    `prefix` is the number of characters of a path that name the patterns' folder; `lead` is prepended to the rest, for
    a walk that begins below that folder.
    """

    above: IgnoreRules | None
    prefix: int
    spec: GitIgnoreSpec
    any: re2.Set | None
    """Finds any path that a rule names, in a text of several lines of paths."""
    lead: str = ""

    def touches(self, folder: str, names: Sequence[str]) -> bool:
        """Return True if a rule may name one of these entries of a folder. Folder names end with a slash.

        One such check is much cheaper than a verdict on each entry.
        """
        rules: IgnoreRules | None = self
        while rules is not None:
            here = rules.lead + folder[rules.prefix :]
            if rules.any is None or rules.any.Match(printable(here + f"\n{here}".join(names))):
                return True
            rules = rules.above
        return any("\n" in name for name in names)

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return True if `path` is ignored."""
        return self.verdict(path, is_folder=is_folder) is True

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Return True if `path` is ignored, False if it is explicitly included, None if no rule matches.

        The deepest matching rule decides.
        """
        rules: IgnoreRules | None = self
        while rules is not None:
            here = rules.lead + path[rules.prefix :] + ("/" if is_folder else "")
            # A name need not be UTF-8, but the patterns' automaton requires it.
            verdict = rules.spec.check_file(printable(here)).include
            if verdict is not None:
                return verdict
            rules = rules.above
        return None


def rules_in(
    roots: Roots, folder: str, names: Collection[str], above: IgnoreRules | None, prefix: int, lead: str = "",
    *, files: Iterable[str] = IGNORE_FILES, failed: Callable[[str, Exception], None] | None = None,
) -> IgnoreRules | None:  # fmt: skip
    """Return the rules `above` a folder combined with those from its own ignore files.

    Args:
        names: of entries that are, or may be, in the folder.
        files: names of ignore files, in increasing order of precedence.
        failed: called for each file that cannot be read; such a file ignores nothing.
    """
    texts: list[str] = []
    for path in [os.path.join(folder, name) for name in files if name in names]:
        try:
            with open(roots.open(path)[0], "rb") as file:
                texts.append(file.read(MAX_BYTES).decode("utf-8", "replace"))
        except (OSError, OutsideRoots) as error:
            if failed is not None:
                failed(path, error)
    return rules_from(texts, above, prefix, lead) if texts else above


def rules_from(texts: Iterable[str], above: IgnoreRules | None, prefix: int, lead: str = "") -> IgnoreRules:
    """Build rules from the texts of a folder's ignore files, in increasing order of precedence.

    Patterns that ignore the folder `lead`, where a walk was asked to begin, do not hold: what is named is not ignored.
    """
    text = "\n".join(texts)
    if lead and _spec(text).check_file(printable(lead)).include:
        text = "\n".join(line for line in text.split("\n") if not _spec(line).check_file(printable(lead)).include)
    return IgnoreRules(above, prefix, _spec(text), _any(text), lead)


@functools.lru_cache(maxsize=256)
def _any(text: str) -> re2.Set | None:
    expressions = [each.regex.pattern for each in _spec(text).patterns if each.regex is not None]
    with suppress(BadPattern):
        found = searching(f"^{PROBE}$", *(f"(?m){each}" for each in expressions), max_mem=MEMORY_BYTES[-1])
        return found if found.Match(PROBE) else None
    return None


@functools.lru_cache(maxsize=256)
def _spec(text: str) -> GitIgnoreSpec:
    lines = [line.rstrip("\r") for line in text.split("\n")]
    weights = itertools.accumulate(map(_weight, lines))
    lines = [line for line, weight in zip(lines, weights, strict=True) if weight <= MAX_WEIGHT]
    with suppress(ValueError):
        return gitignore(lines)
    # Git skips a pattern that it cannot parse, and keeps the rest.
    understood = [line for line in lines if _is_pattern(line)]
    while True:
        try:
            return gitignore(understood)
        except ValueError:
            # Patterns that exceed the memory limit were not written by a person.
            understood = understood[: len(understood) // 2]


def _weight(line: str) -> int:
    # A class of non-ASCII letters takes a millisecond.
    return 1 + sum(map(line.count, "*?/")) + line.count("[") * (1 if line.isascii() else 64)


def _is_pattern(line: str) -> bool:
    try:
        gitignore([line])
    except ValueError:
        return False
    return True


class Patterns:
    """Matches patterns with git's rules against the names in one folder after another.

    Patterns without an inner slash depend on the name alone, and many names repeat.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        """Raises ValueError for the same reasons as `gitignore`."""
        spec = gitignore(lines)
        self.by_path = any("/" in line.lstrip("!").rstrip("/") for line in lines)
        self._of_files = self.by_path or not all(line.endswith("/") for line in lines)

        @functools.lru_cache(65_536)
        def matched(path: str) -> bool | None:
            # A name need not be UTF-8, but the patterns' automaton requires it.
            found: bool | None = spec.check_file(printable(path)).include
            return found

        self._matched = matched

    def verdict(self, below: str, name: str) -> bool | None:
        """Return True if the patterns match an entry, False if they explicitly exclude it, None otherwise.

        Args:
            below: the path of the entry's folder, relative to the patterns' folder, with a trailing slash.
            name: the entry's name; a folder's name ends in a slash.
        """
        if name[-1] != "/" and not self._of_files:
            return None
        return self._matched(below + name if self.by_path else name)
