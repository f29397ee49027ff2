"""`linckia import-chats`: conversations from the files that agents leave on disk.

The files are read here, in parts, since the service may not access them. The service remembers how far each was read,
so an interrupted command resumes. If another import has read further meanwhile, this one continues from there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proto.control.client import Client
from proto.control.commands import Usage
from proto.control.terminal import (
    Bars,
    OnProgress,
    complain,
    confirmed,
    connect,
    counted,
    patiently,
    say,
    show_json,
    show_table,
    size,
)
from services.transcripts import places
from services.transcripts.operations.intake import ImportState, TranscriptImport, TranscriptImportState
from services.transcripts.records import parts
from services.transcripts.sources import Source, Unfinished
from services.transcripts.sources.finding import main_file, sources

NO_LAYOUT = "none"
"""The layout of a file that the service does not understand."""

EXPECTED = (
    "sessions of an agent (docs/transcripts.md lists them), the conversations.json of an export of ChatGPT or Claude,"
    " or messages in the format of OpenAI's, Anthropic's or Google's API, as JSON or JSON Lines"
)

_OTHERS = {
    b"PK\x03\x04": "a ZIP archive, which must be unpacked first",
    b"\x1f\x8b": "compressed (gzip), and must be unpacked first",
    b"\x28\xb5\x2f\xfd": "compressed (zstd), and must be unpacked first",
    b"SQLite format 3": "a SQLite database",
    b"<": "HTML or XML",
}


def import_chats(arguments: argparse.Namespace) -> int:
    """Import the files, or what is found at the usual places. Exit code 1 if one does not exist, or is not understood.

    Raises Usage, ControlError.
    """
    if arguments.dry_run and arguments.files:
        raise Usage("--dry-run shows what is found at the usual places; leave FILE out")
    paths = [Path(path).expanduser().resolve() for path in arguments.files]
    missing = [path for path in paths if not path.exists()]
    for path in missing:
        complain(f"{path} does not exist")
    files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    if missing and not files:
        return 1
    if not paths:
        found = list(places.find(os.environ))
        if not found:
            complain(
                f"no conversations at the usual places of {', '.join(places.NAMES.values())}; give a file or folder"
            )
            return 0
        chosen = _usual(found, confirm=not arguments.yes, dry_run=arguments.dry_run)
        if chosen is None:
            return 0 if arguments.dry_run else 1
        files = chosen
    began = time.monotonic()
    with connect(arguments) as client, Bars("importing", of_bytes=True) as show:
        importer = _Importer(client, sum(file.stat().st_size for file in files), show)
        for file in files:
            importer.take(file)
    took_s = max(time.monotonic() - began, 1e-3)
    if arguments.json:
        counts = {name: getattr(importer, name) for name in ("files", "messages", "nodes", "read_bytes", "failed")}
        show_json({**counts, "missing": list(map(str, missing)), "seconds": round(took_s, 3)})
        return 1 if importer.failed or missing else 0
    say(
        f"{counted(importer.messages, 'message')} in {counted(importer.files, 'file')}, {importer.nodes:,} new, "
        f"in {took_s:.1f} s ({importer.read_bytes / took_s / 1e6:.1f} MB/s)"
    )
    return 1 if importer.failed or missing else 0


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from map(Path, places.files_in(path))
    elif path.exists():
        # A file that is read with another may be named too.
        main = main_file(str(path))
        yield Path(main) if main and os.path.isfile(main) else path


def _usual(found: Sequence[places.Found], *, confirm: bool, dry_run: bool) -> list[Path] | None:
    """Show what is found at the usual places. Returns the files, or None if they shall not be imported."""
    rows = [(each.agent, f"{each.sessions:,}", size(each.size), each.place) for each in found]
    if not (confirm or dry_run):
        return [Path(path) for each in found for path in each.files]
    show_table(["AGENT", "SESSIONS", "SIZE", "PLACE"], rows)
    if dry_run:
        return None
    if not sys.stdin.isatty():
        complain("nothing is imported without a terminal to ask on; add --yes to import all of these, or give a path")
        return None
    if not confirmed("Import these conversations? [y/N]"):
        return None
    return [Path(path) for each in found for path in each.files]


@dataclass(slots=True)
class _Found:
    """Counts for one file."""

    records: int = 0
    incomplete: bool = False
    unreadable: int = 0
    mended: int = 0
    problem: str = ""
    layout: str = ""


def _not_understood(file: Path, found: _Found) -> str | None:
    """Return why nothing was read from a file, and what was expected; None if something was, or nothing is new."""
    if found.layout in (NO_LAYOUT, "") and (found.records or found.unreadable or found.incomplete):
        with file.open("rb") as opened:
            begins = opened.read(512).lstrip()
        hint = next((f"it is {what}; " for mark, what in _OTHERS.items() if begins.startswith(mark)), "")
        first = f"; {found.problem}" if found.problem and not hint else ""
        return f"contains no conversation in a known format; {hint}expected {EXPECTED}{first}"
    return None


@dataclass(slots=True)
class _Importer:
    """Imports files part by part, and counts."""

    client: Client
    total_bytes: int
    show: OnProgress | None
    files: int = 0
    messages: int = 0
    nodes: int = 0
    read_bytes: int = 0
    passed_bytes: int = 0
    """Includes bytes of files that had been read before."""
    failed: int = 0

    def take(self, file: Path) -> None:
        """Import one file; report and count a failure to read it."""
        before, size_bytes = self.passed_bytes, 0
        try:
            size_bytes = file.stat().st_size
            for source in sources(str(file)):
                self._take_parts(file, source)
            self.files += 1
        except Unfinished as error:
            complain(f"{file}: {error}")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            complain(f"{file}: {reason}" if isinstance(error, OSError) else f"{file}: {reason}; expected {EXPECTED}")
            self.failed += 1
        self._passed(before + size_bytes, file)

    def _take_parts(self, file: Path, source: Source) -> None:
        known = patiently(self.client, TranscriptImportState(source=source.name), patience_s=float("inf"))
        # A later version may know the format of a file that was not understood.
        state: ImportState | None = known if known.layout != NO_LAYOUT else ImportState()
        found = _Found()
        while state is not None:
            state = self._go_on(file, source, state, found)
        if (why := _not_understood(file, found)) is not None:
            complain(f"{file}: {why}")
            self.failed += 1
        elif found.unreadable or found.mended:
            counts = {"skipped": found.unreadable, "missing": found.mended}
            skipped = ", ".join(f"{counted(count, 'record')} {what}" for what, count in counts.items() if count)
            complain(f"{file}: {skipped}; the first: {found.problem}")

    def _go_on(self, file: Path, source: Source, state: ImportState, found: _Found) -> ImportState | None:
        """Read from one state to the end; return the new state if another import has read further meanwhile."""
        with source.open() as opened:
            for part in parts(opened, state.position, state.tail):
                given = TranscriptImport(
                    source=source.name, records=part.records, start=part.start, position=part.position, tail=part.tail,
                    final=part.final,
                )  # fmt: skip
                # Wait as long as it takes for the service to return: a part that was stored is not stored twice.
                answer = patiently(self.client, given, patience_s=float("inf"))
                if answer.moved is not None:
                    return answer.moved
                self.messages += answer.messages
                self.nodes += answer.nodes
                self.read_bytes += part.position - part.start
                found.records += len(part.records)
                found.layout = answer.layout
                found.unreadable += answer.unreadable + sum(not each.is_cut for each in part.too_long)
                found.mended += answer.mended
                found.problem = found.problem or answer.problem
                for each in part.too_long:
                    complain(f"{file}: {each}")
                    found.problem = found.problem or str(each)
                if part.incomplete:
                    found.incomplete = True
                    complain(f"{file}: the end is incomplete and is left for the next import")
                self._passed(self.passed_bytes + part.position - part.start, file)
        return None

    def _passed(self, passed_bytes: int, file: Path) -> None:
        self.passed_bytes = max(self.passed_bytes, passed_bytes)
        if self.show is not None:
            self.show({"done": self.passed_bytes, "total": self.total_bytes, "message": file.name})
