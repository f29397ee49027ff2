"""What the setting `deny` lists, and the other data directories that no client can access, even below a root."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

from kernel.configure.config import ConfigError

_WILDCARD = re.compile(r"[*?\[]")


def denials(given: Iterable[str], origin: str) -> tuple[list[str], list[str]]:
    """Return the paths, and the patterns for absolute paths, that `deny` lists. Raises ConfigError.

    An item that starts with `/` or `~` is a path, and may have wildcards. Others are patterns for names anywhere.
    """
    paths: list[str] = []
    patterns: list[str] = []
    for each in given:
        path = os.path.expanduser(each)
        if not each.strip() or "\0" in each:
            raise ConfigError(f"{origin}: deny: {each!r} is neither a path nor a pattern")
        if not os.path.isabs(path):
            patterns.append(f"**/{path.removeprefix('./')}")
        elif not _WILDCARD.search(path) or os.path.lexists(path):
            paths.append(path)
        else:
            fixed = _WILDCARD.split(path, maxsplit=1)[0].rpartition("/")[0]
            patterns.append(os.path.realpath(fixed or "/").rstrip("/") + path[len(fixed) :])
    for pattern in patterns:
        from pathspec import GitIgnoreSpec  # Rarely needed, and the import would slow down every start.

        try:
            GitIgnoreSpec.from_lines([pattern])
        except (ValueError, re.error) as error:
            raise ConfigError(f"{origin}: deny: {pattern!r} is not a .gitignore pattern: {error}") from None
    return paths, patterns


def set_aside(data_dir: Path) -> list[Path]:
    """Return the data directories that `restore` has moved aside, or is building."""
    name = glob.escape(data_dir.name)
    return [
        path for pattern in (f"{name}.replaced-*", f".{name}.restoring-*") for path in data_dir.parent.glob(pattern)
    ]


def check_roots(roots: Iterable[Path], denied: Iterable[str]) -> None:
    """Raise ConfigError if a root lies in a denied folder, so that nothing below it could be accessed."""
    for root in roots:
        if over := next((path for path in denied if root.is_relative_to(path)), None):
            raise ConfigError(
                f"the root {root} lies in {over}, which no client may access: it belongs to Linckia itself, holds its "
                "backups, or is listed in `deny`; name another folder"
            )
