"""Ignore files (`.gitignore` and its like) with git's rules, for those that walk folders."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs
from pathspec import GitIgnoreSpec

from linckia.services.runtime.gitignore import MEMORY_BYTES, PROBE, gitignore
from linckia.services.runtime.linear import BadPattern, searching
from linckia.services.runtime.roots import OutsideRoots, Roots, printable

IGNORE_FILES = (".gitignore", ".ignore", ".linckiaignore")
"""In rising order of precedence."""

VERSION_CONTROL = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})
GENERATED = frozenset(
    {
        "node_modules", "bower_components", "__pycache__", ".venv", ".eggs", ".mypy_cache", ".pytest_cache", ".tox",
        ".nox", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".gradle", ".terraform", ".next", ".nuxt",
    }
)  # fmt: skip
"""Folders that tools make, and would make again."""


MAX_BYTES = 1 << 20
MAX_WEIGHT = 16_384
"""Patterns, wildcards and slashes in one folder's files; what follows no person wrote, and it is not read."""


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The patterns of one folder's ignore files, over those of the folders above it.

    `prefix` counts the characters of a path that name the patterns' folder; `lead` is put before the rest, for a walk
    that begins below that folder.
    """

    above: IgnoreRules | None
    prefix: int
    spec: GitIgnoreSpec
    any: re2.Set | None
    """Finds a path that some rule names, in several lines of paths."""
    lead: str = ""

    def touches(self, folder: str, names: Sequence[str]) -> bool:
        """Whether a rule may name one of these in a folder (with slash; those of folders with one too): one look for
        what a verdict on each would take much longer."""
        rules: IgnoreRules | None = self
        while rules is not None:
            here = rules.lead + folder[rules.prefix :]
            if rules.any is None or rules.any.Match(printable(here + f"\n{here}".join(names))):
                return True
            rules = rules.above
        return any("\n" in name for name in names)

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is ignored."""
        return self.verdict(path, is_folder=is_folder) is True

    def verdict(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether `path` is ignored, or expressly not; None where no rule says so. The deepest one that matches
        decides."""
        rules: IgnoreRules | None = self
        while rules is not None:
            here = rules.lead + path[rules.prefix :] + ("/" if is_folder else "")
            # A name need not be UTF-8, which the patterns' automaton wants.
            verdict = rules.spec.check_file(printable(here)).include
            if verdict is not None:
                return verdict
            rules = rules.above
        return None


def rules_in(
    roots: Roots, folder: str, names: Collection[str], above: IgnoreRules | None, prefix: int, lead: str = "",
    *, files: Iterable[str] = IGNORE_FILES, failed: Callable[[str, Exception], None] | None = None,
) -> IgnoreRules | None:  # fmt: skip
    """The rules `above` a folder, and those that its ignore files state.

    Args:
        names: of what is in the folder, or may be.
        files: names of ignore files, in rising order of precedence.
        failed: told of one that cannot be read; such a one ignores nothing.
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
    """The rules that a folder's ignore files state, in rising order of precedence."""
    text = "\n".join(texts)
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
            # What is more than the memory for them holds is nothing that a person wrote.
            understood = understood[: len(understood) // 2]


def _weight(line: str) -> int:
    # A class of letters beyond ASCII takes a millisecond.
    return 1 + sum(map(line.count, "*?/")) + line.count("[") * (1 if line.isascii() else 64)


def _is_pattern(line: str) -> bool:
    try:
        gitignore([line])
    except ValueError:
        return False
    return True


class Patterns:
    """What patterns with git's rules say of the names in one folder after another. Where none has a slash inside, they
    are about the name alone, and many names are alike."""

    def __init__(self, lines: Sequence[str]) -> None:
        """Raises ValueError as `gitignore`."""
        spec = gitignore(lines)
        self.by_path = any("/" in line.lstrip("!").rstrip("/") for line in lines)
        self._of_files = self.by_path or not all(line.endswith("/") for line in lines)

        @functools.lru_cache(65_536)
        def matched(path: str) -> bool | None:
            # A name need not be UTF-8, which the patterns' automaton wants.
            found: bool | None = spec.check_file(printable(path)).include
            return found

        self._matched = matched

    def verdict(self, below: str, name: str) -> bool | None:
        """Whether they name an entry, or expressly do not; None where none of them says so.

        Args:
            below: the path of its folder from where the patterns are meant, with slash.
            name: that of a folder ends in a slash.
        """
        if name[-1] != "/" and not self._of_files:
            return None
        return self._matched(below + name if self.by_path else name)
