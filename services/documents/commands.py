"""`linckia add`, `ls`, `cat`, `grep`, `checkout` and `snapshots`: stored documents for people at a terminal."""

from __future__ import annotations

import argparse
import base64
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from proto.control.client import CallFailed, Client
from proto.control.commands import AddCommand, Failed, Group, Usage, add_json
from proto.control.terminal import (
    Bars,
    complain,
    connect,
    counted,
    params_of,
    patiently,
    pour,
    say,
    show_answer,
    show_json,
    size,
)

if TYPE_CHECKING:
    from proto.ops.documents.change import AddResult
    from proto.ops.documents.reading import GetResult
    from services.documents.operations.adding import DocumentsAdd
    from services.documents.operations.find import GrepResult

PIECE_BYTES = 1024 * 1024
PAGE = 1000

ADD_EPILOG = """\
examples:
  linckia add src --collection code --exclude '*.min.js'
  git log | linckia add --name history.txt
"""

GREP_EPILOG = """\
examples:
  linckia grep -w 'class \\w+Handler' src
  linckia grep -il todo
"""

GROUP = Group.DOCUMENTS


def add(command: AddCommand) -> None:
    """Declare `add`, `ls`, `cat`, `grep`, `checkout` and `snapshots`."""
    add = command("add", run_add, "store files or directories as documents, without duplicates", ADD_EPILOG)
    add.add_argument("paths", metavar="PATH", nargs="*", help="file or directory, at or below a root of the kernel")
    add.add_argument("--name", metavar="NAME", help="store the text on stdin under this name instead")
    add.add_argument("--collection", metavar="NAME", help="put them into this collection")
    add.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="add this tag; may be repeated")
    add.add_argument("--meta", metavar="KEY=VALUE", dest="metadata", action="append", help="metadata; may be repeated")
    add.add_argument("--include", metavar="GLOB", action="append", help="only these files of a directory")
    add.add_argument("--exclude", metavar="GLOB", action="append", help="not these files of a directory")
    add.add_argument("--no-ignore", action="store_true", help="include files that .gitignore and .ignore exclude")
    add.add_argument("--label", metavar="TEXT", dest="snapshot_label", help="name of the snapshot of a directory")

    ls = command("ls", run_ls, "list stored documents")
    ls.add_argument("path", metavar="PATH", nargs="?", help="only those at or below this path, or matching this glob")
    orders = ("name", "size", "created", "modified", "indexed")
    ls.add_argument("--sort", dest="sort_by", choices=orders, default="name", help="order (default: name)")
    ls.add_argument("--reverse", action="store_true", help="in reverse order")
    ls.add_argument("--limit", metavar="N", type=int, help="maximum number of documents")
    ls.add_argument("--paths", action="store_true", help="only paths, one per line")

    cat = command("cat", run_cat, "write stored documents to stdout, byte for byte")
    cat.add_argument("documents", metavar="DOCUMENT", nargs="+", help="name, path, or hash (at least 8 digits)")

    grep = command("grep", run_grep, "search stored documents with a regular expression", GREP_EPILOG)
    grep.add_argument("pattern", metavar="PATTERN", help="a regular expression")
    grep.add_argument("paths", metavar="PATH", nargs="*", help="only these documents, folders or globs")
    grep.add_argument("-i", "--ignore-case", action="store_true", help="upper and lower case are the same")
    grep.add_argument("-w", "--word", action="store_true", help="whole words only")
    grep.add_argument("-F", "--fixed", dest="literal", action="store_true", help="PATTERN is plain text")
    grep.add_argument("-c", "--count", action="store_true", help="only the number of matching lines per document")
    grep.add_argument("-l", "--files-with-matches", action="store_true", help="only paths")
    grep.add_argument("-C", "--context", metavar="N", type=int, default=0, help="lines around each match")
    grep.add_argument("-m", "--max-count", metavar="N", type=int, default=0, help="maximum matches per document")

    checkout = command("checkout", run_checkout, "write the files of a snapshot or a collection to a directory")
    target = "at or below a root of the kernel; nothing is written elsewhere"
    checkout.add_argument("output_directory", metavar="DIR", help=target)
    checkout.add_argument("--snapshot", metavar="ID", dest="snapshot_id", help="an id from `linckia snapshots`")
    checkout.add_argument("--collection", metavar="NAME", help="the latest version of all documents in this collection")
    checkout.add_argument("--overwrite", action="store_true", help="replace files that exist")
    checkout.add_argument("--dry-run", action="store_true", help="only report what would be written")
    for pattern, what in (("include", "only these files"), ("exclude", "not these files")):
        checkout.add_argument(f"--{pattern}", metavar="GLOB", dest=f"{pattern}_patterns", action="append", help=what)

    snapshots = command("snapshots", run_snapshots, "list the snapshots that `add` made of directories")
    snapshots.add_argument("--limit", metavar="N", type=int, help="maximum number of snapshots")
    for one in (ls, grep):
        one.add_argument("--collection", metavar="NAME", help="only in this collection")
        one.add_argument("--extension", metavar="EXT", help="only with this extension")
        one.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    add_json(add, ls, cat, grep, checkout, snapshots)


def run_add(arguments: argparse.Namespace) -> int:
    """Store files, directories, or stdin under a name. Exit code 1 if a file could not be read."""
    answers: list[AddResult] = []
    with connect(arguments) as client:
        for request in _to_add(arguments):
            began = time.monotonic()
            with Bars("storing") as show:
                answer = patiently(client, request, show)
            answers.append(answer)
            if not arguments.json:
                say(added(answer, time.monotonic() - began))
            for reason in (*answer.failed, *(f"text of {each}" for each in answer.without_text)):
                complain(reason)
    if arguments.json:
        show_json(answers)
    return 1 if any(answer.failed_count for answer in answers) else 0


def _to_add(arguments: argparse.Namespace) -> list[DocumentsAdd]:
    """Return the parameters of each call. Raises Usage, Failed."""
    from services.documents.operations.adding import DocumentsAdd

    for value in arguments.metadata or []:
        if "=" not in value:
            raise Usage(f"--meta {value!r} is not KEY=VALUE")
    if (arguments.name is not None) == bool(arguments.paths):
        raise Usage("give paths to store, or --name NAME to store the text on stdin")
    if arguments.paths:
        paths = [str(Path(path).expanduser().resolve()) for path in arguments.paths]
        return [params_of(DocumentsAdd, arguments, path=path) for path in paths]
    try:
        content = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise Failed("stdin is not UTF-8 text; store it from a file") from None
    of_directories = {"include": [], "exclude": [], "no_ignore": False, "snapshot_label": None}
    return [params_of(DocumentsAdd, arguments, content=content, **of_directories)]


def added(answer: AddResult, took_s: float) -> str:
    """Return a summary of the stored documents."""
    if answer.snapshot_id is None:
        return f"{(answer.hash or '')[:12]}  {size(answer.size)}  {answer.path}" + (
            "" if answer.is_new else "  (this content was already stored)"
        )
    text = f"{answer.path}: {counted(answer.files, 'file')}, {size(answer.size)}"
    text += f"; {answer.documents_added} new, {answer.documents_updated} changed; "
    text += f"{size(answer.bytes_stored)} newly stored; {took_s:.1f} s"
    if took_s > 0.1:
        text += f" ({answer.files / took_s:.0f} files/s)"
    if answer.failed_count:
        text += f"; {answer.failed_count} could not be read"
    return f"{text}\nsnapshot {answer.snapshot_id}"


def run_ls(arguments: argparse.Namespace) -> int:
    """List documents, page by page."""
    from proto.ops.documents.reading import Document
    from services.documents.operations.listing import DocumentsList

    if arguments.limit is not None and arguments.limit < 1:
        raise Usage(f"--limit is {arguments.limit}; it must be at least 1")
    order = None
    if arguments.reverse:
        order = "desc" if arguments.sort_by == "name" else "asc"
    documents: list[Document] = []
    offset: int | None = 0
    with connect(arguments) as client:
        while offset is not None and not (arguments.limit and len(documents) >= arguments.limit):
            asked = params_of(DocumentsList, arguments, limit=PAGE, sort_order=order, offset=offset)
            page = patiently(client, asked)
            documents += page.documents
            offset = page.next_offset
    if arguments.limit:
        del documents[arguments.limit :]
    if arguments.path and not documents:
        raise Failed(f"no document is stored at or below {arguments.path} or matches it")
    if arguments.paths and not arguments.json:
        for one in documents:
            say(one.path)
        return 0
    rows = [((one.hash[:12], "dim"), size(one.size), moment(one.indexed), (one.path, "bold")) for one in documents]
    answer = {"total": page.total, "documents": documents}
    show_answer(arguments.json, answer, ("HASH", "SIZE", "INDEXED", "PATH"), rows)
    return 0


def moment(time: str) -> str:
    """Convert a time in RFC 3339 to a form for people."""
    return time[:19].replace("T", " ")


def run_cat(arguments: argparse.Namespace) -> int:
    """Write the bytes of documents to stdout, piece by piece; each is given by hash, name or path."""
    with connect(arguments) as client:
        for wanted in arguments.documents:
            first = _found(client, wanted)
            if arguments.json:
                show_json(first)
                continue
            pour(_content(client, first))
    return 0


def _content(client: Client, document: GetResult) -> Iterator[bytes]:
    from proto.ops.documents.reading import DocumentsGet

    offset = 0
    while offset < document.size:
        asked = DocumentsGet(path=document.path, include_content=True, original=True, offset=offset, length=PIECE_BYTES)
        piece = patiently(client, asked)
        if piece.hash != document.hash:
            raise Failed(f"{document.path} was changed while it was being read")
        content = piece.content or ""
        yield base64.b64decode(content) if piece.content_encoding == "base64" else content.encode()
        offset += piece.content_length or 0


def _found(client: Client, wanted: str) -> GetResult:
    """Find a document by name or path, otherwise by hash."""
    from proto.ops.documents.reading import DocumentsGet

    try:
        return patiently(client, DocumentsGet(name=wanted))
    except CallFailed as by_name:
        digits = wanted.removeprefix("sha256:").removeprefix("sha256-").lower()
        if len(digits) < 8 or set(digits) - set("0123456789abcdef"):
            here = Path(wanted).expanduser()
            if not here.exists():
                raise
            return patiently(client, DocumentsGet(path=str(here.resolve())))
        try:
            return patiently(client, DocumentsGet(hash=wanted))
        except CallFailed:
            raise by_name from None


def run_grep(arguments: argparse.Namespace) -> int:
    """Print matching lines as grep does. Exit code 1 if nothing matches."""
    from services.documents.operations.find import DocumentsGrep

    answers: list[GrepResult] = []
    lines = _Lines()
    with connect(arguments) as client:
        while not answers or answers[-1].next_cursor is not None:
            cursor = answers[-1].next_cursor if answers else None
            answer = patiently(client, params_of(DocumentsGrep, arguments, limit=PAGE, cursor=cursor))
            answers.append(answer)
            for reason in answer.degraded:
                complain(reason)
            if not arguments.json:
                lines.show(answer, arguments.context)
    if arguments.json:
        show_json(answers[0] if len(answers) == 1 else answers)
    return 0 if any(answer.match_count for answer in answers) else 1


class _Lines:
    """Prints matches as grep does, with colours on a terminal."""

    def show(self, answer: GrepResult, context: int) -> None:
        for path in answer.files or []:
            self._line(path, "", None, "")
        for one in answer.counts or []:
            self._line(one.file, ":", None, str(one.count))
        for index, match in enumerate(answer.matches):
            if context and index:
                say("--")
            first = match.line_number - len(match.context_before)
            for number, text in enumerate(match.context_before, first):
                self._line(match.file, "-", number, text)
            self._line(match.file, ":", match.line_number, match.line_text)
            for number, text in enumerate(match.context_after, match.line_number + 1):
                self._line(match.file, "-", number, text)

    def _line(self, path: str, mark: str, number: int | None, text: str) -> None:
        numbered = "" if number is None else f"{mark}{number}"
        mark = mark if text or number is not None else ""
        say([(path, "magenta"), (numbered, "green"), mark, text])


def run_checkout(arguments: argparse.Namespace) -> int:
    """Write a snapshot or a collection below a directory. Exit code 1 if a file was skipped."""
    from services.documents.operations.change import DocumentsRestore

    if (arguments.snapshot_id is None) == (arguments.collection is None):
        raise Usage("give a SNAPSHOT (`linckia snapshots` lists them) with --snapshot, or --collection NAME")
    directory = str(Path(arguments.output_directory).expanduser().resolve())
    with connect(arguments) as client, Bars("writing") as show:
        answer = patiently(client, params_of(DocumentsRestore, arguments, output_directory=directory), show)
    if arguments.json:
        show_json(answer)
        return 1 if answer.skipped else 0
    done = "would be written" if answer.dry_run else "written"
    skipped = f"; {answer.skipped} skipped" if answer.skipped else ""
    written = f"{counted(answer.files_restored, 'file')} ({size(answer.bytes_restored)})"
    say(f"{written} {done} below {answer.output_directory}{skipped}")
    for one in answer.files:
        if one.reason:
            complain(f"{one.path}: {one.reason}")
    return 1 if answer.skipped else 0


def run_snapshots(arguments: argparse.Namespace) -> int:
    """List the snapshots, latest first."""
    from services.documents.operations.listing import DocumentsListSnapshots

    with connect(arguments) as client:
        answer = patiently(client, params_of(DocumentsListSnapshots, arguments))
    rows = [
        ((one.id, "bold"), moment(one.created), str(one.files), size(one.bytes), one.label, one.directory)
        for one in answer.snapshots
    ]
    show_answer(arguments.json, answer, ("SNAPSHOT", "CREATED", "FILES", "SIZE", "LABEL", "DIRECTORY"), rows)
    return 0
