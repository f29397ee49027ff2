"""`linckia search` and `linckia ingest`: notes for people at a terminal."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from proto.control.commands import AddCommand, Group, Usage, add_json
from proto.control.terminal import Bars, complain, connect, counted, params_of, patiently, say, show_json, show_table

if TYPE_CHECKING:
    from services.knowledge.operations.notes import KnowledgeIngestResult

SNIPPET_CHARS = 160

SEARCH_EPILOG = """\
examples:
  linckia search how do we rotate the keys
  linckia search --tag security --since 2026-01-01 keys
"""

INGEST_EPILOG = """\
The kernel also indexes on its own, and saves its progress: after an interruption or a crash, indexing resumes.
"""

GROUP = Group.FILES


def add(command: AddCommand) -> None:
    """Declare `search` and `ingest`."""
    search = command("search", run_search, "search the notes, by meaning and by words", SEARCH_EPILOG)
    search.add_argument("query", metavar="WORDS", nargs="+", help="what to look for, in plain language")
    search.add_argument("--limit", metavar="N", type=int, default=10, help="maximum number of notes (default: 10)")
    search.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    search.add_argument("--path", metavar="PREFIX", help="only notes whose path below the root starts with PREFIX")
    search.add_argument("--since", metavar="DATE", help="only notes of this day or later")
    search.add_argument("--until", metavar="DATE", help="only notes of this day or earlier")
    add_json(search)

    ingest = command("ingest", run_ingest, "scan the folders now, and wait until all notes are indexed", INGEST_EPILOG)
    at_roots = "at or below a root of the kernel (default: all roots)"
    ingest.add_argument("paths", metavar="PATH", nargs="*", help=at_roots)
    no_vectors = "do not wait until all notes can be found by meaning as well"
    ingest.add_argument("--no-vectors", dest="vectors", action="store_false", help=no_vectors)
    add_json(ingest, help="the result of `knowledge_ingest`, as JSON")


def run_search(arguments: argparse.Namespace) -> int:
    """Print the notes found, best first; report stages that did not run on stderr. Raises ControlError, Usage."""
    from services.knowledge.operations.notes import SearchDocuments

    if not 1 <= arguments.limit <= 1000:
        raise Usage(f"--limit is {arguments.limit}; it must be 1 to 1000")
    with connect(arguments) as client:
        answer = client.call(params_of(SearchDocuments, arguments, query=" ".join(arguments.query)))
    if arguments.json:
        show_json(answer)
        return 0
    for reason in answer.metadata.degraded:
        complain(reason)
    if not answer.results:
        complain("nothing was found")
        return 0
    if answer.note:
        complain(answer.note)
    show_table(
        ("SCORE", "NOTE", "WHERE", "PASSAGE"),
        [(_score(hit.score), (hit.id, "bold"), hit.context, snippet(hit.snippet)) for hit in answer.results],
    )
    return 0


def _score(score: float) -> str:
    from proto.ops.retrieve import UNLIKELY

    return f"{score:.3f}" + (" unlikely" if score < UNLIKELY else "")


def snippet(text: str) -> str:
    """Return the text on one line, truncated to what a terminal can show."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else f"{line[: SNIPPET_CHARS - 1].rstrip()}…"


def run_ingest(arguments: argparse.Namespace) -> int:
    """Wait until everything below the paths is indexed. Exit code 1 if a note failed. Raises ControlError."""
    from services.knowledge.operations.notes import KnowledgeIngest

    paths = [str(Path(path).expanduser().resolve()) for path in arguments.paths]
    began = time.monotonic()
    with connect(arguments) as client, Bars() as show:
        # The work resumes however long the service takes to return.
        asked = KnowledgeIngest(paths=paths, vectors=arguments.vectors)
        answer = patiently(client, asked, show, patience_s=float("inf"))
    if arguments.json:
        show_json(answer)
    else:
        say(summary(answer, time.monotonic() - began))
    if answer.no_model:
        complain(f"notes are found by words only: {answer.no_model}")
    for problem in answer.failed:
        complain(f"{problem.path}: {problem.reason}")
    return 1 if answer.failed_count else 0


def summary(answer: KnowledgeIngestResult, took_s: float) -> str:
    """Return one line: how many notes, how many of them now, and how fast."""
    text = f"{counted(answer.notes, 'note')} indexed, {answer.indexed:,} of them now"
    if answer.indexed:
        text += f", in {took_s:.1f} s ({answer.indexed / max(took_s, 1e-3):.0f} notes/s)"
    if answer.failed_count:
        text += f"; {answer.failed_count} failed"
    if answer.vectors_waiting:
        text += f"; {counted(answer.vectors_waiting, 'passage')} without vectors yet"
    return text
