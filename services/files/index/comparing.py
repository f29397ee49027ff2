"""Which of the directories that are stored are as they were when they were listed.

A rescan reads the stored directories in the order of their paths, some thousand entries at a time: it examines one such
piece itself while processes of the service `compare` examine the next ones. A piece that they do not answer is examined
here, so a rescan depends on them for its speed only. Pieces come back in their
order, and no more of them are held than those who look are kept busy with.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import apsw

from proto.errors import LinckiaError
from services.files.index.listing import NOTHING, Ignored, open_folder, read_folder
from services.files.index.tree import below
from services.files.store.rows import fetch_all

PIECE_ENTRIES = 2_000
PIECE_FOLDERS = 500

ELSEWHERE = 6
"""Pieces that others look at, or that wait for them to."""

HELD = 3 * ELSEWHERE

PATIENCE_S = 0.2
"""Between two looks at whether the scan is to stop, while there is nothing else to be done."""


class Known(NamedTuple):
    """A directory as it is stored; `path` ends in a slash."""

    id: int
    path: str
    fingerprint: bytes | None
    inside: int
    own_files: int
    own_size: int


class Answer(NamedTuple):
    """A piece, and which of its directories, by their place in it, are to be listed."""

    folders: list[Known]
    different: Sequence[int]


Listed = Sequence[tuple[str, bytes]]
"""Directories, each a path with slash and the fingerprint of its listing."""

Future = concurrent.futures.Future[list[int]]

Look = Callable[[Listed], list[int]]
"""As `different`, of which the rules are known already."""

Ask = Callable[[Listed], Future]
"""The same by somebody else, who may answer with a LinckiaError instead. Does not block."""


def different(folders: Listed, ignored: Ignored | None, skipped_devices: frozenset[int]) -> list[int]:
    """Which directories cannot be listed, or are not as they were."""
    found = []
    for number, (path, known) in enumerate(folders):
        try:
            if fingerprint(path, ignored, skipped_devices) != known:
                found.append(number)
        except OSError:
            found.append(number)
    return found


def fingerprint(path: str, ignored: Ignored | None, skipped_devices: frozenset[int]) -> bytes:
    """Of a directory (path with slash), no link followed at its end; empty where not all of it can be known. Raises
    OSError."""
    # An ending slash would have a link followed.
    descriptor = open_folder(path.rstrip("/") or "/", None)
    try:
        if skipped_devices and os.fstat(descriptor).st_dev in skipped_devices:
            return NOTHING.fingerprint
        listing = read_folder(descriptor, path, ignored)
        return b"" if listing.unknown else listing.fingerprint
    finally:
        os.close(descriptor)


def compared(
    db: apsw.Connection, root: str, last: int, look: Look, ask: Ask | None, go_on: Callable[[], None]
) -> Iterator[Answer]:
    """All directories at or below a path (with slash) that are stored, up to the id `last`, piece by piece.

    Args:
        db: a reader; each piece has the state stored when its turn comes.
        go_on: called now and then, and may raise.
    """
    pieces = _pieces(db, root, last)
    held: deque[_Piece] = deque()
    piece = next(pieces, None)
    while piece is not None or held:
        go_on()
        if piece is not None:
            # The first one as well: what one process looks at in a moment is not worth the way to another.
            piece.found = look(piece.listed)
            held.append(piece)
            piece = next(pieces, None)
        asked = sum(not each.is_ready() for each in held)
        while ask is not None and piece is not None and asked < ELSEWHERE and len(held) < HELD:
            piece.answer = ask(piece.listed)
            held.append(piece)
            asked += 1
            piece = next(pieces, None)
        while held and (held[0].is_ready() or piece is None or len(held) >= HELD):
            yield held.popleft().waited_for(look, go_on)


class _Piece:
    """Directories that somebody looks at."""

    def __init__(self, folders: list[Known]) -> None:
        self.folders = folders
        self.listed = [(each.path, each.fingerprint) for each in folders if each.fingerprint]
        self.found: list[int] | None = None
        self.answer: Future | None = None

    def is_ready(self) -> bool:
        return self.answer is None or self.answer.done()

    def waited_for(self, look: Look, go_on: Callable[[], None]) -> Answer:
        while self.found is None:
            try:
                self.found = look(self.listed) if self.answer is None else self.answer.result(PATIENCE_S)
            except TimeoutError:
                go_on()
            except (LinckiaError, concurrent.futures.CancelledError):
                self.answer = None
        # Among the listed ones; those that never were, or not as they are stored now, are different in any case.
        numbers = [number for number, each in enumerate(self.folders) if each.fingerprint]
        others = [number for number, each in enumerate(self.folders) if not each.fingerprint]
        return Answer(self.folders, sorted([*others, *(numbers[n] for n in self.found if 0 <= n < len(numbers))]))


def _pieces(db: apsw.Connection, root: str, last: int) -> Iterator[_Piece]:
    first, end = below(root)
    query = (
        "SELECT id, path, fingerprint, inside, own_files, own_size FROM folder"
        " WHERE path >= ? AND path < ? AND id <= ? ORDER BY path LIMIT ?"
    )
    while rows := fetch_all(db, query, (first, end, last, PIECE_FOLDERS)):
        folders: list[Known] = []
        entries = 0
        for row in rows:
            folders.append(Known(*row))
            entries += 1 + folders[-1].inside + folders[-1].own_files
            if entries >= PIECE_ENTRIES:
                break
        yield _Piece(folders)
        # No path is the last one and a NUL.
        first = folders[-1].path + "\0"
