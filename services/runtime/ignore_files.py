"""Ignore files (`.gitignore` and its like) with git's rules, for those that walk folders."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pathspec import GitIgnoreSpec

from services.runtime.roots import printable

IGNORE_FILES = (".gitignore", ".ignore", ".linckiaignore")
"""In rising order of precedence."""


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The patterns of one folder's ignore files, over those of the folders above it.

    `prefix` counts the characters of a path that name the patterns' folder; `lead` is put before the rest, for a walk
    that begins below that folder.
    """

    above: IgnoreRules | None
    prefix: int
    spec: GitIgnoreSpec
    lead: str = ""

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path` is ignored; the deepest rule that matches decides."""
        rules: IgnoreRules | None = self
        while rules is not None:
            here = rules.lead + path[rules.prefix :] + ("/" if is_folder else "")
            # A name need not be UTF-8, which the patterns' automaton wants.
            verdict = rules.spec.check_file(printable(here)).include
            if verdict is not None:
                return verdict
            rules = rules.above
        return False


def rules_from(texts: Iterable[str], above: IgnoreRules | None, prefix: int, lead: str = "") -> IgnoreRules:
    """The rules that a folder's ignore files state, in rising order of precedence."""
    return IgnoreRules(above, prefix, _spec("\n".join(texts)), lead)


@functools.lru_cache(maxsize=256)
def _spec(text: str) -> GitIgnoreSpec:
    understood: list[str] = []
    for line in text.split("\n"):
        pattern = line.rstrip("\r")
        try:
            GitIgnoreSpec.from_lines([pattern])
        except (ValueError, re.error):
            # Git skips a pattern that it cannot parse, and keeps the rest.
            continue
        understood.append(pattern)
    return GitIgnoreSpec.from_lines(understood)
