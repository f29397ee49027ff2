"""Follows the folders where agents store their conversations, and stores new messages within seconds, once.

Each file is read from the position that was stored together with its last messages (`importing`). A crash, a repeated
notification or a concurrent `linckia import-chats` therefore changes nothing. A file that cannot be read is
logged and skipped until it changes. A database or folder is read by its sessions, and only those that changed
(`sources`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

import trio

from proto.errors import LinckiaError
from proto.ops.watch import Change, ChangeKind, EntryKind
from services.runtime.handlers import Environment
from services.runtime.roots import OutsideRoots, Roots, is_text_name, printable
from services.shared.follower import Follower
from services.transcripts.importing import Importing
from services.transcripts.operations.intake import ImportState, TranscriptImport, TranscriptImportState
from services.transcripts.records import Part, parts
from services.transcripts.sources import PATTERNS, Source, Unfinished, is_source
from services.transcripts.sources.finding import main_file, sources

_log = logging.getLogger("linckia.transcripts")


class Following:
    """The task that reads files, and the listener for the runtime's follower."""

    def __init__(self, env: Environment, importing: Importing) -> None:
        self._roots = env.roots
        self._importing = importing
        self._stamps: dict[str, str] = {}
        """Of sessions in databases and folders, as they were last read."""
        self._follower = Follower(env, "conversations", self)
        # If another folder appears later, the kernel restarts this service.
        there = [root for root in self._roots if os.path.isdir(root)]
        self._follower.follow(there, include=PATTERNS)

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._follower.run()

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        """Import the new content of the changed files."""
        names = [each.path for each in changes if each.kind is EntryKind.FILE and each.change is not ChangeKind.DELETED]
        for path in await trio.to_thread.run_sync(self._main_files, names):
            await self._take(path)

    async def rescan(self, sequence: int) -> None:
        """Import the new content of all files."""
        for path in await trio.to_thread.run_sync(lambda: self._main_files(_files(self._roots))):
            await self._take(path)

    def _main_files(self, paths: Iterable[str]) -> list[str]:
        """Return the files with which changed ones are read, each once."""
        found = (main_file(path, self._opened) for path in paths)
        return list(dict.fromkeys(path for path in found if path is not None))

    async def watched(self) -> None:
        """Does nothing, since nothing waits for this."""

    def unwatched(self, reason: str) -> None:
        """Log the reason; content written meanwhile is read later."""
        _log.warning("conversations are currently not followed: %s", reason)

    async def _take(self, path: str) -> None:
        try:
            found = sources(path, self._opened)
            while (source := await trio.to_thread.run_sync(_next, found)) is not None:
                if not source.stamp or self._stamps.get(source.name) != source.stamp:
                    await self._take_source(source)
                    if source.stamp:
                        self._stamps[source.name] = source.stamp
        except Unfinished:
            # It changes again.
            pass
        except (OSError, ValueError, OutsideRoots) as error:
            _log.warning("%s is skipped: %s", printable(path), error)
        except LinckiaError:
            # A disk or database error: the follower delivers the change again.
            raise
        except Exception:  # noqa: BLE001  # a defect of a layout costs only this file
            _log.exception("%s is skipped", printable(path))

    async def _take_source(self, source: Source) -> None:
        state: ImportState | None = await self._importing.state(TranscriptImportState(source=source.name))
        while state is not None:
            state = await self._import_from(source, state)

    async def _import_from(self, source: Source, state: ImportState) -> ImportState | None:
        """Import from `state` to the end of the file. Returns the newer state if another import came in between."""
        with await trio.to_thread.run_sync(source.open) as file:
            found = parts(file, state.position, state.tail)
            while (part := await trio.to_thread.run_sync(_next, found)) is not None:
                request = TranscriptImport(
                    source=source.name, start=part.start, position=part.position, tail=part.tail, records=part.records,
                    final=part.final,
                )  # fmt: skip
                for each in part.too_long:
                    _log.warning("%s: %s", printable(source.name), each)
                if (moved := (await self._importing.take(request)).moved) is not None:
                    return moved
        return None

    def _opened(self, path: str) -> BinaryIO:
        return os.fdopen(self._roots.open(path)[0], "rb")


T = TypeVar("T", Part, Source)


def _next(found: Iterator[T]) -> T | None:
    return next(found, None)


def _files(roots: Roots) -> Iterator[str]:
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if not roots.hides(os.path.join(folder, name))]
            yield from (
                path for name in sorted(names) if is_text_name(name) and is_source(path := os.path.join(folder, name))
            )
