"""The commands on what is stored: notes, conversations, documents, files, and all of it exported or imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable

AddCommand = Callable[..., argparse.ArgumentParser]
"""From a command's name, its module, its help, and an epilogue."""


def add_json(*parsers: argparse.ArgumentParser, help: str = "everything, as JSON") -> None:
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help=help)


def seconds_option(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


seconds_option.__name__ = "number of seconds"  # what argparse calls a value that it refuses


SEARCH_EPILOG = """\
examples:
  linckia search how do we rotate the keys
  linckia search --tag security --since 2026-01-01 keys
"""

INGEST_EPILOG = """\
The kernel indexes on its own and keeps what it has done: interrupt this, or kill anything, and it resumes where it was.
"""


def _notes(command: AddCommand) -> None:
    search = command("search", "notes", "search the notes, by meaning and by words", SEARCH_EPILOG)
    search.add_argument("query", metavar="WORDS", nargs="+", help="what to look for, in plain language")
    search.add_argument("--limit", metavar="N", type=int, default=10, help="notes at most (default: 10)")
    search.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    search.add_argument("--path", metavar="PREFIX", help="only notes whose path below its root starts so")
    search.add_argument("--since", metavar="DATE", help="only notes of this day or later")
    search.add_argument("--until", metavar="DATE", help="only notes of this day or earlier")
    add_json(search)

    ingest = command("ingest", "notes", "scan the folders now, and wait until all notes are indexed", INGEST_EPILOG)
    at_roots = "at or below a root of the kernel (default: all roots)"
    ingest.add_argument("paths", metavar="PATH", nargs="*", help=at_roots)
    no_vectors = "do not wait until all notes are found by meaning as well"
    ingest.add_argument("--no-vectors", dest="vectors", action="store_false", help=no_vectors)


IMPORT_EPILOG = """\
examples:
  linckia import-transcripts ~/.claude/projects ~/.codex/sessions ~/.gemini/tmp
  linckia import-transcripts conversations.json

Session files of Claude Code, Codex CLI and Gemini CLI; exports of ChatGPT and Claude; messages as OpenAI's and
Anthropic's APIs have them, as JSON or JSON Lines. Of a file that was imported before, only the new part is read; a
message that is stored already, from any source, is not stored twice. An interrupted import resumes where it was.
"""

PROXY_EPILOG = """\
examples:
  linckia proxy --upstream https://api.openai.com &
  OPENAI_BASE_URL=http://127.0.0.1:8484/v1 my-agent

  linckia proxy --upstream https://api.anthropic.com &
  ANTHROPIC_BASE_URL=http://127.0.0.1:8484 my-agent

Requests and replies pass through byte for byte. Chat completions, responses, messages and Ollama's chats are recorded
after the reply; keys and other headers never are. Without a running kernel turns are spooled until there is one.
"""


def _transcripts(command: AddCommand) -> None:
    summary = "import the conversations that agents left in files"
    transcripts = command("import-transcripts", "import_transcripts", summary, IMPORT_EPILOG)
    sources = "a session file, a JSON export, or a folder of them"
    transcripts.add_argument("files", metavar="FILE", nargs="+", help=sources)

    summary = "forward requests to a model's API, and record the conversations"
    proxy = command("proxy", "proxy", summary, PROXY_EPILOG)
    proxy.add_argument("--upstream", metavar="URL", required=True, help="the API, such as https://api.openai.com")
    listen = "default: 127.0.0.1:8484; port 0 takes a free one"
    proxy.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:8484", help=listen)
    proxy.add_argument("--agent", metavar="NAME", default="", help="the agent's name, to record the turns under")
    proxy.add_argument("--project", metavar="NAME", default="", help="the project, to record the turns under")


IMPORT_FROM_EPILOG = """\
examples:
  linckia export ~/linckia-export
  linckia import --data OTHER ~/linckia-export        once more changes nothing
  linckia import --from tapes tapes.sqlite            the conversations of tapes
  linckia import --from space-browser disk.db         the resource sets, sources and plans of mcp-space-browser
"""


def _carry(command: AddCommand) -> None:
    export = command("export", "carry.export", "what you made, as JSON Lines and files, for any program to read")
    export.add_argument("directory", metavar="DIR", help="that is not there yet, or is empty")
    importing = command(
        "import", "carry.importing", "take in an export, or another program's database", IMPORT_FROM_EPILOG
    )
    importing.set_defaults(function="take_in")
    importing.add_argument("source", metavar="PATH", help="the directory of the export, or the database")
    from_help = "the program whose database it is"
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
    add = command("add", "documents", "store files or directories as documents, once each", ADD_EPILOG)
    add.add_argument("paths", metavar="PATH", nargs="*", help="file or directory, at or below a root of the kernel")
    add.add_argument("--name", metavar="NAME", help="store the text on stdin under this name instead")
    add.add_argument("--collection", metavar="NAME", help="put them into this collection")
    add.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="add this tag; may be repeated")
    add.add_argument("--meta", metavar="KEY=VALUE", dest="metadata", action="append", help="metadata; may be repeated")
    add.add_argument("--include", metavar="GLOB", action="append", help="of a directory, only these files")
    add.add_argument("--exclude", metavar="GLOB", action="append", help="of a directory, not these files")
    add.add_argument("--no-ignore", action="store_true", help="also what .gitignore and .ignore leave out")
    add.add_argument("--label", metavar="TEXT", dest="snapshot_label", help="name of the snapshot of a directory")

    ls = command("ls", "documents", "list stored documents")
    ls.add_argument("path", metavar="PATH", nargs="?", help="only at or below this path, or that match this glob")
    orders = ("name", "size", "created", "modified", "indexed")
    ls.add_argument("--sort", dest="sort_by", choices=orders, default="name")
    ls.add_argument("--reverse", action="store_true", help="in reverse order")
    ls.add_argument("--limit", metavar="N", type=int, help="documents at most")
    ls.add_argument("--paths", action="store_true", help="paths alone, one a line")

    cat = command("cat", "documents", "write stored documents to stdout, byte for byte")
    cat.add_argument("documents", metavar="DOCUMENT", nargs="+", help="name, path, or hash (8 digits or more)")

    grep = command("grep", "documents", "lines of stored documents that match a regular expression", GREP_EPILOG)
    grep.add_argument("pattern", metavar="PATTERN", help="a regular expression")
    grep.add_argument("paths", metavar="PATH", nargs="*", help="only these documents, folders or globs")
    grep.add_argument("-i", "--ignore-case", action="store_true")
    grep.add_argument("-w", "--word", action="store_true", help="whole words only")
    grep.add_argument("-F", "--fixed", dest="literal", action="store_true", help="PATTERN is plain text")
    grep.add_argument("-c", "--count", action="store_true", help="how many lines of each document match")
    grep.add_argument("-l", "--files-with-matches", action="store_true", help="paths alone")
    grep.add_argument("-C", "--context", metavar="N", type=int, default=0, help="lines around each match")
    grep.add_argument("-m", "--max-count", metavar="N", type=int, default=0, help="matches of each document at most")

    restore = command("restore", "documents", "write the files of a snapshot or a collection to a directory")
    target = "at or below a root of the kernel; nothing is written elsewhere"
    restore.add_argument("output_directory", metavar="DIR", help=target)
    restore.add_argument("--snapshot", metavar="ID", dest="snapshot_id", help="as `linckia snapshots` lists them")
    restore.add_argument("--collection", metavar="NAME")
    restore.add_argument("--overwrite", action="store_true", help="replace files that exist")
    restore.add_argument("--dry-run", action="store_true", help="say what would be written")
    for pattern, what in (("include", "only these files"), ("exclude", "not these files")):
        restore.add_argument(f"--{pattern}", metavar="GLOB", dest=f"{pattern}_patterns", action="append", help=what)

    snapshots = command("snapshots", "documents", "list the snapshots that `add` has made of directories")
    snapshots.add_argument("--limit", metavar="N", type=int, help="snapshots at most")
    for one in (ls, grep):
        one.add_argument("--collection", metavar="NAME", help="only of this collection")
        one.add_argument("--extension", metavar="EXT", help="only with this extension")
        one.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    add_json(add, ls, cat, grep, restore, snapshots)


INDEX_EPILOG = """\
Directories that have not changed cost next to nothing. An interrupted scan leaves what it has found in the index.
"""

DU_EPILOG = """\
examples:
  linckia du
  linckia du ~/notes --depth 1 --fresh
"""


def _files(command: AddCommand) -> None:
    index = command("index", "files", "bring the index of files in step with the disk, and wait", INDEX_EPILOG)
    index.add_argument("paths", metavar="PATH", nargs="+", help="at or below a root of the kernel")

    du = command("du", "files", "disk usage: a directory as a tree with bars, the largest first", DU_EPILOG)
    du.add_argument("path", metavar="PATH", nargs="?", default=".", help="at or below a root (default: this folder)")
    du.add_argument("--depth", metavar="N", type=int, default=2, help="levels of directories (default: 2)")
    du.add_argument("--limit", metavar="N", type=int, default=10, help="entries of each directory (default: 10)")
    du.add_argument("--fresh", action="store_true", help="scan even if the last scan is younger than an hour")
    add_json(du, help="as JSON")


FAMILIES = (_notes, _transcripts, _documents, _carry, _files)
