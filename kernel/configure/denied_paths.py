"""What no client can access, even below a root: Linckia's own files, and what the setting `deny` lists.

Anyone who can write these has the operator's rights: a settings file defines the roots, the data directory holds every
service's database, and the installation is the code that runs. `services/runtime/roots.py` enforces this.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from kernel.configure.settings import ConfigError

_WILDCARD = re.compile(r"[*?\[]")

_SHARED_PREFIXES = ("/", "/usr", "/usr/local")
"""Prefixes of interpreters that belong to the system, which contain other things too."""


def installation() -> list[str]:
    """Return the folders of the running code: these sources, the virtual environment, the interpreter's library."""
    library = sysconfig.get_paths()
    folders = [str(Path(__file__).resolve().parents[2]), *(library[name] for name in ("stdlib", "purelib", "platlib"))]
    return folders + [prefix for prefix in {sys.prefix, sys.base_prefix} if prefix not in _SHARED_PREFIXES]


def places(paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the paths as written, since a link in them could be replaced, and resolved; only the outermost ones."""
    all_ = {place for path in paths for place in (os.path.abspath(path), os.path.realpath(path))}
    return tuple(sorted(path for path in all_ if not any(str(above) in all_ for above in Path(path).parents)))


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
    """Return the data directories that `restore-backup` has moved aside, or is building."""
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
