"""Commands for stored data: notes, conversations, documents and files, and their export and import."""

from __future__ import annotations

import argparse
from collections.abc import Callable

AddCommand = Callable[..., argparse.ArgumentParser]
"""Takes a command's name, module, help and epilogue; returns its parser."""


def add_json(*parsers: argparse.ArgumentParser, help: str = "everything, as JSON") -> None:
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help=help)


def seconds_option(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


seconds_option.__name__ = "number of seconds"  # argparse uses it in its message about an invalid value


SEARCH_EPILOG = """\
examples:
  linckia search how do we rotate the keys
  linckia search --tag security --since 2026-01-01 keys
"""

INGEST_EPILOG = """\
The kernel also indexes on its own, and saves its progress: after an interruption or a crash, indexing resumes.
"""


def _notes(command: AddCommand) -> None:
    search = command("search", "notes", "search the notes, by meaning and by words", SEARCH_EPILOG)
    search.add_argument("query", metavar="WORDS", nargs="+", help="what to look for, in plain language")
    search.add_argument("--limit", metavar="N", type=int, default=10, help="maximum number of notes (default: 10)")
    search.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    search.add_argument("--path", metavar="PREFIX", help="only notes whose path below the root starts with PREFIX")
    search.add_argument("--since", metavar="DATE", help="only notes of this day or later")
    search.add_argument("--until", metavar="DATE", help="only notes of this day or earlier")
    add_json(search)

    ingest = command("ingest", "notes", "scan the folders now, and wait until all notes are indexed", INGEST_EPILOG)
    at_roots = "at or below a root of the kernel (default: all roots)"
    ingest.add_argument("paths", metavar="PATH", nargs="*", help=at_roots)
    no_vectors = "do not wait until all notes can be found by meaning as well"
    ingest.add_argument("--no-vectors", dest="vectors", action="store_false", help=no_vectors)
    add_json(ingest, help="the result of `knowledge_ingest`, as JSON")


IMPORT_EPILOG = """\
examples:
  linckia import-transcripts ~/.claude/projects ~/.codex/sessions ~/.gemini/tmp
  linckia import-transcripts conversations.json

Supports session files of Claude Code, Codex CLI and Gemini CLI, exports of ChatGPT, Claude, LibreChat and Open WebUI,
and messages in the format of OpenAI's, Anthropic's and Google's APIs, as JSON or JSON Lines. Of a file that was
imported before, only the new part is read. A message that is already stored, from any source, is not stored twice.
Repeat an interrupted import to resume it. Ends with status 1 if a file is not understood; it is named with what was
expected.
"""

PROXY_EPILOG = """\
examples:
  linckia proxy --upstream https://api.openai.com &
  OPENAI_BASE_URL=http://127.0.0.1:8484/v1 my-agent

  linckia proxy --upstream https://api.anthropic.com &
  ANTHROPIC_BASE_URL=http://127.0.0.1:8484 my-agent

Requests and replies pass through byte for byte. Chat completions, responses, messages and Ollama chats are recorded
after the reply; keys and other headers are not. While no kernel runs, turns are spooled.
"""


def _transcripts(command: AddCommand) -> None:
    summary = "import conversations from files that agents left"
    transcripts = command("import-transcripts", "import_transcripts", summary, IMPORT_EPILOG)
    sources = "a session file, a JSON export, or a folder of them"
    transcripts.add_argument("files", metavar="FILE", nargs="+", help=sources)
    add_json(transcripts, help="counts of files, messages and new turns, as JSON")

    summary = "forward requests to a model's API and record the conversations"
    proxy = command("proxy", "proxy", summary, PROXY_EPILOG)
    proxy.add_argument("--upstream", metavar="URL", required=True, help="the API, such as https://api.openai.com")
    listen = "default: 127.0.0.1:8484; port 0 picks a free one"
    proxy.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8484", help=listen)
    proxy.add_argument("--agent", metavar="NAME", default="", help="agent name to record with the turns")
    proxy.add_argument("--project", metavar="NAME", default="", help="project name to record with the turns")


IMPORT_FROM_EPILOG = """\
examples:
  linckia export ~/linckia-export
  linckia import --data OTHER ~/linckia-export        importing again changes nothing
  linckia import --from tapes tapes.sqlite            the conversations of tapes
  linckia import --from space-browser disk.db         the resource sets, sources and plans of mcp-space-browser
"""


def _carry(command: AddCommand) -> None:
    export = command("export", "carry.export", "export your data as JSON Lines and files that any program can read")
    export.add_argument("directory", metavar="DIR", help="a new or empty directory")
    importing = command(
        "import", "carry.importing", "import an export, or another program's database", IMPORT_FROM_EPILOG
    )
    importing.set_defaults(function="take_in")
    importing.add_argument("source", metavar="PATH", help="the directory of the export, or the database")
    from_help = "the program that the database belongs to"
    importing.add_argument("--from", dest="origin", choices=("tapes", "space-browser"), help=from_help)


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


def _documents(command: AddCommand) -> None:
    add = command("add", "documents", "store files or directories as documents, without duplicates", ADD_EPILOG)
    add.add_argument("paths", metavar="PATH", nargs="*", help="file or directory, at or below a root of the kernel")
    add.add_argument("--name", metavar="NAME", help="store the text on stdin under this name instead")
    add.add_argument("--collection", metavar="NAME", help="put them into this collection")
    add.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="add this tag; may be repeated")
    add.add_argument("--meta", metavar="KEY=VALUE", dest="metadata", action="append", help="metadata; may be repeated")
    add.add_argument("--include", metavar="GLOB", action="append", help="only these files of a directory")
    add.add_argument("--exclude", metavar="GLOB", action="append", help="not these files of a directory")
    add.add_argument("--no-ignore", action="store_true", help="include files that .gitignore and .ignore exclude")
    add.add_argument("--label", metavar="TEXT", dest="snapshot_label", help="name of the snapshot of a directory")

    ls = command("ls", "documents", "list stored documents")
    ls.add_argument("path", metavar="PATH", nargs="?", help="only those at or below this path, or matching this glob")
    orders = ("name", "size", "created", "modified", "indexed")
    ls.add_argument("--sort", dest="sort_by", choices=orders, default="name", help="order (default: name)")
    ls.add_argument("--reverse", action="store_true", help="in reverse order")
    ls.add_argument("--limit", metavar="N", type=int, help="maximum number of documents")
    ls.add_argument("--paths", action="store_true", help="only paths, one per line")

    cat = command("cat", "documents", "write stored documents to stdout, byte for byte")
    cat.add_argument("documents", metavar="DOCUMENT", nargs="+", help="name, path, or hash (at least 8 digits)")

    grep = command("grep", "documents", "search stored documents with a regular expression", GREP_EPILOG)
    grep.add_argument("pattern", metavar="PATTERN", help="a regular expression")
    grep.add_argument("paths", metavar="PATH", nargs="*", help="only these documents, folders or globs")
    grep.add_argument("-i", "--ignore-case", action="store_true", help="upper and lower case are the same")
    grep.add_argument("-w", "--word", action="store_true", help="whole words only")
    grep.add_argument("-F", "--fixed", dest="literal", action="store_true", help="PATTERN is plain text")
    grep.add_argument("-c", "--count", action="store_true", help="only the number of matching lines per document")
    grep.add_argument("-l", "--files-with-matches", action="store_true", help="only paths")
    grep.add_argument("-C", "--context", metavar="N", type=int, default=0, help="lines around each match")
    grep.add_argument("-m", "--max-count", metavar="N", type=int, default=0, help="maximum matches per document")

    restore = command("restore", "documents", "write the files of a snapshot or a collection to a directory")
    target = "at or below a root of the kernel; nothing is written elsewhere"
    restore.add_argument("output_directory", metavar="DIR", help=target)
    restore.add_argument("--snapshot", metavar="ID", dest="snapshot_id", help="an id from `linckia snapshots`")
    restore.add_argument("--collection", metavar="NAME", help="the latest version of all documents in this collection")
    restore.add_argument("--overwrite", action="store_true", help="replace files that exist")
    restore.add_argument("--dry-run", action="store_true", help="only report what would be written")
    for pattern, what in (("include", "only these files"), ("exclude", "not these files")):
        restore.add_argument(f"--{pattern}", metavar="GLOB", dest=f"{pattern}_patterns", action="append", help=what)

    snapshots = command("snapshots", "documents", "list the snapshots that `add` made of directories")
    snapshots.add_argument("--limit", metavar="N", type=int, help="maximum number of snapshots")
    for one in (ls, grep):
        one.add_argument("--collection", metavar="NAME", help="only in this collection")
        one.add_argument("--extension", metavar="EXT", help="only with this extension")
        one.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    add_json(add, ls, cat, grep, restore, snapshots)


INDEX_EPILOG = """\
Unchanged directories are skipped quickly. An interrupted scan keeps what it has indexed.
"""

DU_EPILOG = """\
examples:
  linckia du
  linckia du ~/notes --depth 1 --fresh
"""


def _files(command: AddCommand) -> None:
    index = command("index", "files", "update the index of files to match the disk, and wait", INDEX_EPILOG)
    index.add_argument("paths", metavar="PATH", nargs="+", help="at or below a root of the kernel")
    add_json(index, help="the results of `index`, a list, as JSON")

    du = command("du", "files", "show disk usage: a directory as a tree with bars, largest first", DU_EPILOG)
    du.add_argument("path", metavar="PATH", nargs="?", default=".", help="at or below a root (default: this folder)")
    du.add_argument("--depth", metavar="N", type=int, default=2, help="levels of directories (default: 2)")
    du.add_argument("--limit", metavar="N", type=int, default=10, help="entries per directory (default: 10)")
    du.add_argument("--fresh", action="store_true", help="scan even if the last scan is less than an hour old")
    add_json(du, help="as JSON")


MIGRATE_EPILOG = """\
examples:
  linckia migrate retrieve --to postgres
  linckia migrate retrieve --to local --collection own.products

`dsn_env` in [retrieve] names the server. Everything stays usable, and each copy is compared with its original before it
takes its place. Repeat an interrupted migration to resume it.
"""


REEMBED_EPILOG = """\
examples:
  linckia reembed
  linckia reembed --cluster
  linckia reembed --cluster --collection documents

Items without a vector of the model in use wait in the outbox of their collection, and the kernel embeds them on its
own. This shows the progress; with --cluster, nodes take part. After a change of the model, all items wait. Repeat an
interrupted command to go on with what is left.
"""


def _stores(command: AddCommand) -> None:
    migrate = command(
        "migrate", "migrate", "move collections to a PostgreSQL server, or back into files", MIGRATE_EPILOG
    )
    migrate.add_argument("service", choices=("retrieve",), help="whose data")
    migrate.add_argument("--to", choices=("postgres", "local"), required=True, help="where to store it")
    migrate.add_argument("--collection", metavar="NAME", help="only this one; a client's has own. before its name")

    reembed = command(
        "reembed", "reembed", "make the vectors that are missing, here or on the nodes of a cluster", REEMBED_EPILOG
    )
    reembed.add_argument("--cluster", action="store_true", help="on the nodes of the Ray cluster of [cluster]")
    reembed.add_argument("--collection", metavar="NAME", help="only this one; a client's has own. before its name")


FAMILIES = (_notes, _transcripts, _documents, _carry, _files, _stores)
