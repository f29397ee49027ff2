"""Lists a folder as it is on disk, so that no index is needed."""

from __future__ import annotations

import json
import os
import stat

from msgspec import structs

from proto.errors import InvalidParams
from services.files import paths
from services.files.operations.text import FileSource, FileText, ReadFile
from services.files.text.editing import MAX_LINES, answered
from services.runtime.roots import Roots, real_path_of
from services.shared.text.lines import span


def listed(roots: Roots, real: str, params: ReadFile) -> FileText:
    """Return the entries of the folder at a real path, one per line, sorted by name, as many as fit into an answer.
    Denied ones are left out. Blocks.

    Raises:
        InvalidParams: the parameters are for files, or `lines` is no range of the entries.
        OSError, OutsideRoots, Denied: it cannot be read, or may not be.
    """
    for field, given in (("original", params.original), ("encoding", params.encoding)):
        if given:
            raise InvalidParams(f"`{field}`: {paths.shown(params.path)} is a directory, not a file", field=field)
    descriptor = roots.open_folder(real)
    try:
        hidden = roots.hidden_in(real_path_of(descriptor, real))
        names = [name for name in os.listdir(descriptor) if hidden is None or not hidden(name)]
        names.sort(key=lambda name: (name.lower(), name))
        total = len(names)
        first, last = span(params.lines, 1, total) if params.lines else (1, MAX_LINES)
        last = min(last, total)
        if (first > last or not first) and (params.lines or total):
            raise InvalidParams(f"`lines`: no lines {params.lines}; the folder has {total} entries", field="lines")
        shown = "".join(f"{_line(descriptor, name)}\n" for name in names[first - 1 : min(last, first + MAX_LINES - 1)])
    finally:
        os.close(descriptor)
    answer = answered(shown, first, last, total, is_range=bool(params.lines))
    return structs.replace(answer, encoding="utf-8", source=FileSource.FOLDER)


def _line(folder: int, name: str) -> str:
    """Describe an entry: its kind, its size in bytes if it is a file, and its name."""
    shown = _plain(name)
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return f"file {status.st_size} {shown}"
        if stat.S_ISDIR(status.st_mode):
            return f"directory - {shown}/"
        if stat.S_ISLNK(status.st_mode):
            return f"symlink - {shown} -> {_plain(os.readlink(name, dir_fd=folder))}"
    except OSError as error:
        return f"unreadable - {shown} ({os.strerror(error.errno or 0)})"
    return f"other - {shown}"


def _plain(name: str) -> str:
    """Return a name as text, as a JSON string if it could be misread."""
    text = paths.to_text(name)
    return text if text.isprintable() and not text.startswith('"') else json.dumps(text, ensure_ascii=False)
