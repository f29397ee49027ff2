"""Finds the stored directories that have changed since they were listed.

A rescan reads the stored directories in path order, some thousand entries at a time. It examines one such piece itself
while processes of the service `compare` examine the next ones, since a Python process uses a single processor. A piece
that they do not return in time is examined here: the other processes only make a rescan faster. Results are returned in
order, and only as many pieces are held as keep the others busy.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

import apsw
import trio

from proto.errors import LinckiaError, Unavailable
from services.files import paths
from services.files.index.listing import NOTHING, Ignored, ignore_rules, open_folder, read_folder
from services.files.index.tree import below
from services.files.operations.index import Compared, CompareFolders
from services.files.operations.text import GrepPart, GrepTexts
from services.files.store.sql import fetch_all
from services.files.text.searching import search
from services.runtime.handlers import Context, Environment, Handlers

PIECE_ENTRIES = 2_000
PIECE_FOLDERS = 500

ELSEWHERE = 6
"""Number of pieces in flight to other processes."""

HELD = 3 * ELSEWHERE

TIMEOUT_S = 10.0
"""A piece takes milliseconds unless the disk is slow, and then the scan would wait for the same disk."""

PATIENCE_S = 0.2
"""Interval between checks for cancellation while waiting for another process."""

COLLECTIONS = (100_000, 50, 100)
"""Garbage collector thresholds: a scan creates millions of objects without cycles; looking for cycles took an eighth of
its time."""


class Known(NamedTuple):
    """A directory as stored; `path` ends in a slash."""

    id: int
    path: str
    fingerprint: bytes | None
    inside: int
    own_files: int
    own_size: int


Listed = Sequence[tuple[str, bytes]]
"""Directories: paths with slash, and the fingerprints of their listings. An empty fingerprint counts as changed."""

Future = concurrent.futures.Future[list[int]]

Look = Callable[[Listed], list[int]]
"""Like `different`, with the rules bound."""

Ask = Callable[[Listed], Future]
"""Requests the same from another process, without waiting; the future may fail with LinckiaError."""


def different(folders: Listed, ignored: Ignored | None, skipped_devices: frozenset[int]) -> list[int]:
    """Return the indexes of directories that have changed or cannot be listed."""
    found = []
    for number, (path, known) in enumerate(folders):
        try:
            if not known or fingerprint(path, ignored, skipped_devices) != known:
                found.append(number)
        except OSError:
            found.append(number)
    return found


def fingerprint(path: str, ignored: Ignored | None, skipped_devices: frozenset[int]) -> bytes:
    """Compute the fingerprint of a directory (path with slash) without following a link at its end. Empty if some
    entries could not be examined. Raises OSError."""
    # With a trailing slash, a link would be followed.
    descriptor = open_folder(paths.of_folder(path), None)
    try:
        if skipped_devices and os.fstat(descriptor).st_dev in skipped_devices:
            return NOTHING.fingerprint
        listing = read_folder(descriptor, path, ignored)
        return b"" if listing.unknown else listing.fingerprint
    finally:
        os.close(descriptor)


def compared(
    db: apsw.Connection, root: str, last: int, look: Look, ask: Ask | None, go_on: Callable[[], None]
) -> Iterator[tuple[list[Known], list[int]]]:
    """Yield all directories stored at or below a path (with slash), up to id `last`, in pieces, with the indexes of
    those that changed.

    Args:
        db: a reader; each piece is read when its turn comes.
        go_on: called periodically; may raise.
    """
    pieces = _pieces(db, root, last)
    held: deque[tuple[list[Known], Future]] = deque()
    piece = next(pieces, None)
    while piece is not None or held:
        go_on()
        if piece is not None:
            # This includes the very first piece: something one process examines in a moment is not worth sending to
            # another.
            own = Future()
            own.set_result(look(_listed(piece)))
            held.append((piece, own))
            piece = next(pieces, None)
        asked = sum(not answer.done() for _, answer in held)
        while ask is not None and piece is not None and asked < ELSEWHERE and len(held) < HELD:
            held.append((piece, ask(_listed(piece))))
            asked += 1
            piece = next(pieces, None)
        while held and (held[0][1].done() or piece is None or len(held) >= HELD):
            folders, answer = held.popleft()
            yield folders, _waited_for(folders, answer, look, go_on)


def _listed(folders: list[Known]) -> Listed:
    return [(each.path, each.fingerprint or b"") for each in folders]


def _waited_for(folders: list[Known], answer: Future, look: Look, go_on: Callable[[], None]) -> list[int]:
    while True:
        try:
            return answer.result(PATIENCE_S)
        except TimeoutError:
            go_on()
        except (LinckiaError, concurrent.futures.CancelledError):
            return look(_listed(folders))


def _pieces(db: apsw.Connection, root: str, last: int) -> Iterator[list[Known]]:
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
        yield folders
        # No path is the previous one with a NUL appended.
        first = folders[-1].path + "\0"


# The service `compare`


class CompareClient:
    """Calls the service `compare` on behalf of scans, which run in threads."""

    def __init__(self, env: Environment, nursery: trio.Nursery, ignore: Sequence[str]) -> None:
        """`nursery` must end after the scans."""
        self._env = env
        self._nursery = nursery
        self._ignore = tuple(ignore)

    def ask(self, folders: Listed, empty_devices: frozenset[int]) -> Future:
        """Request which directories have changed, from a trio worker thread. Returns a future."""
        answer = Future()
        question = CompareFolders(
            paths=[path for path, _ in folders],
            fingerprints=[known for _, known in folders],
            ignore=self._ignore,
            empty_devices=tuple(empty_devices),
        )
        trio.from_thread.run_sync(self._nursery.start_soon, self._ask, question, answer)
        return answer

    async def _ask(self, question: CompareFolders, answer: Future) -> None:
        try:
            found = await self._env.call(question, timeout_s=TIMEOUT_S)
        except LinckiaError as error:
            answer.set_exception(error)
        except BaseException:
            answer.set_exception(Unavailable("shutting down"))
            raise
        else:
            answer.set_result(found.different)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service `compare`, which has no state and is ready at once."""
    gc.set_threshold(*COLLECTIONS)
    roots = paths.FileRoots(env.roots)
    # Two at once would only contend for the interpreter.
    turn = trio.CapacityLimiter(1)
    handlers = Handlers()
    rules = functools.lru_cache(8)(lambda patterns: ignore_rules(patterns, env.roots))

    @handlers.handle(CompareFolders)
    async def compare_folders(params: CompareFolders, ctx: Context) -> Compared:
        # Directories outside the roots, or without a fingerprint, count as changed without being examined.
        fingerprints = itertools.chain(params.fingerprints, itertools.repeat(b""))
        folders = [
            (path, known if _is_folder_below(path, roots) else b"")
            for path, known in zip(params.paths, fingerprints, strict=False)
        ]
        ignored, skipped = rules(params.ignore), frozenset(params.empty_devices)
        return Compared(different=await trio.to_thread.run_sync(different, folders, ignored, skipped, limiter=turn))

    @handlers.handle(GrepTexts)
    async def grep_texts(params: GrepTexts, ctx: Context) -> GrepPart:
        look = functools.partial(search, env.roots, params.how, params.piece, params.most)
        return await trio.to_thread.run_sync(look, trio.from_thread.check_cancelled, limiter=turn)

    yield handlers


def _is_folder_below(path: str, roots: paths.FileRoots) -> bool:
    if not path.endswith("/") or "\0" in path:
        return False
    clean = paths.of_folder(path)
    return paths.is_within(clean, roots.paths) and not roots.all.hides(paths.to_os(clean))
