"""What no client can access, even below a root: Linckia's own files, and what `deny` lists (`kernel.cli.settings`).

Anyone who can write these has the operator's rights: a settings file defines the roots, the data directory holds every
service's database, and the installation is the code that runs. `services/runtime/roots.py` enforces this.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

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
