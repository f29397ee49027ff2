"""What no client reaches, even where it lies below a root: what Linckia lives on, and what the setting `deny` lists.

Whoever can write these is the operator: a settings file says what the roots are, the data directory holds every
service's database, and the installation is the code that runs.  `services/runtime/roots.py` holds the services to it.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from linckia.kernel.settings import ConfigError

_WILDCARD = re.compile(r"[*?\[]")

_SHARED_PREFIXES = ("/", "/usr", "/usr/local")
"""Of interpreters that came with the system, where other things are as well."""


def installation() -> list[str]:
    """The folders of the code that runs: these sources, the virtual environment, the interpreter's library."""
    library = sysconfig.get_paths()
    folders = [str(Path(__file__).resolve().parents[1]), *(library[name] for name in ("stdlib", "purelib", "platlib"))]
    return folders + [prefix for prefix in {sys.prefix, sys.base_prefix} if prefix not in _SHARED_PREFIXES]


def places(paths: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Paths as they are written, where a link in them could be replaced, and what they lead to; the outermost only."""
    all_ = {place for path in paths for place in (os.path.abspath(path), os.path.realpath(path))}
    return tuple(sorted(path for path in all_ if not any(str(above) in all_ for above in Path(path).parents)))


def denials(given: Iterable[str], origin: str) -> tuple[list[str], list[str]]:
    """The paths, and the patterns for absolute paths, that `deny` lists.  Raises ConfigError.

    What begins with `/` or `~` is a path, and may have wildcards; all else is a pattern for names anywhere.
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
        from pathspec import GitIgnoreSpec  # Few have patterns, and every start would wait for the import.

        try:
            GitIgnoreSpec.from_lines([pattern])
        except (ValueError, re.error) as error:
            raise ConfigError(f"{origin}: deny: {pattern!r} is no pattern of a .gitignore file: {error}") from None
    return paths, patterns


def check_roots(roots: Iterable[Path], denied: Iterable[str]) -> None:
    """Raises ConfigError where nothing below a root could be reached."""
    for root in roots:
        if over := next((path for path in denied if root.is_relative_to(path)), None):
            raise ConfigError(
                f"the root {root} lies in {over}, which no client may reach: it belongs to Linckia itself, holds its "
                "backups, or `deny` names it; name another folder"
            )
