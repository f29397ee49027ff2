"""The commands and their options; completion scripts are derived from the parser too.

Where a command calls one operation, its options are named (`dest`) as the operation's parameters, for `params_of`.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from typing import NoReturn

from kernel import VERSION
from kernel.cli import EXIT_USAGE
from kernel.control.address import default_data_dir

EPILOG = """\
a first session:
  linckia serve ~/notes &                          start, with ~/notes as the only folder that may be touched
  linckia status                                   the services, and how often each has died
  linckia search what to look for                  the notes about it
  linckia tools                                    the operations that can be called
  linckia call mcp.echo '{"message": "hello"}'     call one: JSON in, JSON out

for an MCP client's configuration (it joins the running kernel, or starts one of its own):
  linckia stdio ~/notes

`linckia COMMAND --help` explains a command; `linckia doctor` looks for what this machine lacks.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        # argparse's own words list every choice, in its own notation.
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(choices)}"
            raise argparse.ArgumentError(None, f"there is no {action.dest} {value!r}; {hint}")


_AddCommand = Callable[..., argparse.ArgumentParser]
"""From a command's name, its module, its help, and an epilogue."""


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="linckia",
        description="A fault-tolerant back end for AI agents: an MCP server whose services survive their own crashes.",
        epilog=EPILOG,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"linckia {VERSION}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    data = _Parser(add_help=False)
    data_help = f"data directory; one kernel each (default: $LINCKIA_DATA, else {default_data_dir()})"
    data.add_argument("--data", metavar="DIR", help=data_help.replace("%", "%%"))

    def command(name: str, module: str, help: str, epilog: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=help, description=help, epilog=epilog, parents=[data], formatter_class=formatter,
            allow_abbrev=False,
        )  # fmt: skip
        sub.set_defaults(module=module, function=name.replace("-", "_"))
        return sub

    stored = (_notes, _transcripts, _documents, _carry, _files)
    for family in (_kernel, _calls, *stored, _services, _backups, _access, _machine):
        family(command)
    return parser


def _json(*parsers: argparse.ArgumentParser, help: str = "everything, as JSON") -> None:
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help=help)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


_seconds.__name__ = "number of seconds"  # what argparse calls a value that it refuses


def _kernel(command: _AddCommand) -> None:
    paths_help = "a root: the only places that operations on files may read or change"
    read_only_help = "clients may change nothing: no file below the roots, and nothing that Linckia stores"
    serve = command("serve", "serve", "run the kernel until it is ended by Ctrl-C, SIGTERM or `linckia stop`")
    serve.add_argument("paths", metavar="PATH", nargs="*", help=paths_help)
    serve.add_argument("--read-only", action="store_true", help=read_only_help)
    serve.add_argument("--config", metavar="FILE", help="settings over those of DIR/linckia.toml")
    http = serve.add_mutually_exclusive_group()
    http.add_argument("--http", metavar="HOST:PORT", help="where to serve MCP over HTTP (default: 127.0.0.1:3000)")
    http.add_argument("--no-http", action="store_true", help="do not serve HTTP")
    token_help = "holds the bearer token for HTTP, a must off 127.0.0.1; or set LINCKIA_TOKEN"
    serve.add_argument("--token-file", metavar="FILE", help=token_help)
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    package_help = "serve the service of this Python package as well (PACKAGE.operations, PACKAGE.main)"
    serve.add_argument("--with", metavar="PACKAGE", dest="packages", action="append", help=package_help)
    serve.add_argument("--ephemeral", action="store_true", help=argparse.SUPPRESS)

    stdio = command(
        "stdio", "stdio", "serve MCP on stdin and stdout, for an MCP client's configuration",
        "Joins the kernel that holds the data directory, or starts one that ends when its last client has left.",
    )  # fmt: skip
    stdio.add_argument("paths", metavar="PATH", nargs="*", help=paths_help)
    stdio.add_argument("--surface", metavar="NAME", default="all", help="which tools to show (default: all)")
    stdio.add_argument("--read-only", action="store_true", help=read_only_help)
    stdio.add_argument("--config", metavar="FILE", help="settings for a kernel that has to be started")

    status = command("status", "status", "the services: their state, and how often and why each has died")
    status.add_argument("--trends", action="store_true", help="deaths and growth of each store a day, by the last week")
    _json(status)
    top = command("top", "status", "the same, live, until Ctrl-C")
    top.add_argument("--interval", metavar="SECONDS", type=float, default=1.0, help="default: 1")


CALL_EPILOG = """\
examples:
  linckia call mcp.echo '{"message": "hello"}'
  echo '{"message": "hello"}' | linckia call mcp.echo -
"""


def _calls(command: _AddCommand) -> None:
    call = command("call", "operate", "call an operation: JSON in, JSON out", CALL_EPILOG)
    call.add_argument("name", metavar="NAME", help="an operation, as `linckia tools` lists them")
    call.add_argument("params", metavar="JSON", nargs="?", default="{}", help="its parameters; - reads them from stdin")
    call.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="instead of the operation's own deadline")

    tools = command("tools", "tools", "list the operations that can be called; works without a running kernel")
    tools.add_argument("--surface", metavar="NAME", default="all", help="of this tool surface (default: all)")
    tools.add_argument("--callers", action="store_true", help="every operation and who may call it, services too")
    form = tools.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="with descriptions and JSON Schemas")
    form.add_argument("--markdown", action="store_true", help="a table of services and their operations, as Markdown")


SEARCH_EPILOG = """\
examples:
  linckia search how do we rotate the keys
  linckia search --tag security --since 2026-01-01 keys
"""

INGEST_EPILOG = """\
The kernel indexes on its own and keeps what it has done: interrupt this, or kill anything, and it resumes where it was.
"""


def _notes(command: _AddCommand) -> None:
    search = command("search", "notes", "search the notes, by meaning and by words", SEARCH_EPILOG)
    search.add_argument("query", metavar="WORDS", nargs="+", help="what to look for, in plain language")
    search.add_argument("--limit", metavar="N", type=int, default=10, help="notes at most (default: 10)")
    search.add_argument("--tag", metavar="TAG", dest="tags", action="append", help="with this tag; may be repeated")
    search.add_argument("--path", metavar="PREFIX", help="only notes whose path below its root starts so")
    search.add_argument("--since", metavar="DATE", help="only notes of this day or later")
    search.add_argument("--until", metavar="DATE", help="only notes of this day or earlier")
    _json(search)

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


def _transcripts(command: _AddCommand) -> None:
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


def _carry(command: _AddCommand) -> None:
    export = command("export", "export", "what you made, as JSON Lines and files, for any program to read")
    export.add_argument("directory", metavar="DIR", help="that is not there yet, or is empty")
    importing = command("import", "importing", "take in an export, or another program's database", IMPORT_FROM_EPILOG)
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


def _documents(command: _AddCommand) -> None:
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
    _json(add, ls, cat, grep, restore, snapshots)


INDEX_EPILOG = """\
Directories that have not changed cost next to nothing. An interrupted scan leaves what it has found in the index.
"""

DU_EPILOG = """\
examples:
  linckia du
  linckia du ~/notes --depth 1 --fresh
"""


def _files(command: _AddCommand) -> None:
    index = command("index", "files", "bring the index of files in step with the disk, and wait", INDEX_EPILOG)
    index.add_argument("paths", metavar="PATH", nargs="+", help="at or below a root of the kernel")

    du = command("du", "files", "disk usage: a directory as a tree with bars, the largest first", DU_EPILOG)
    du.add_argument("path", metavar="PATH", nargs="?", default=".", help="at or below a root (default: this folder)")
    du.add_argument("--depth", metavar="N", type=int, default=2, help="levels of directories (default: 2)")
    du.add_argument("--limit", metavar="N", type=int, default=10, help="entries of each directory (default: 10)")
    du.add_argument("--fresh", action="store_true", help="scan even if the last scan is younger than an hour")
    _json(du, help="as JSON")


CHAOS_EPILOG = """\
Only where the kernel was started with `[chaos] allowed = true` in its settings, or LINCKIA_CHAOS=true.

examples:
  linckia chaos drop from echo --frame return
  linckia chaos delay to retrieve --count 20 --delay-ms 300
"""

AUDIT_EPILOG = """\
examples:
  linckia audit --since 1h
  linckia audit --who ci --failed --follow
  linckia audit --operation 'delete*' --json -n 1000 | jq .target
"""


def _services(command: _AddCommand) -> None:
    for name, what in (
        ("restart", "stop a service in order and start it again"),
        ("start", "start a service that was stopped, or that failed, at once"),
    ):
        command(name, "operate", what).add_argument("service", metavar="SERVICE", help="as `linckia status` names it")
    stop = command("stop", "operate", "stop one service, or end the whole kernel in order")
    stop.add_argument("service", metavar="SERVICE", nargs="?", help="without it, the kernel itself")

    chaos = command("chaos", "operate", "lose or delay the next frames of a service, to test the system", CHAOS_EPILOG)
    chaos.add_argument("fault", choices=("drop", "delay", "clear"), help="clear: take back what is still to come")
    chaos.add_argument("direction", choices=("to", "from"), help="from the kernel to the service, or back")
    chaos.add_argument("service", metavar="SERVICE", help="as `linckia status` names it")
    chaos.add_argument("--count", metavar="N", type=int, default=1, help="how many frames (default: 1)")
    chaos.add_argument("--frame", metavar="KIND", default="any", help="call, return, event, ping, … (default: any)")
    chaos.add_argument("--delay-ms", metavar="MS", type=int, default=1000, help="how long each is held back (1000)")

    logs = command("logs", "logs", "the log of a service, or of the kernel; works without a running kernel")
    logs.add_argument("service", metavar="SERVICE", nargs="?", default="kernel", help="default: the kernel itself")
    logs.add_argument("-n", "--lines", metavar="N", type=int, default=50, help="how many lines (default: 50)")
    audit = command("audit", "audit", "who changed what, and what was refused; works without a kernel", AUDIT_EPILOG)
    audit.add_argument("--since", metavar="WHEN", help="how long ago (90s, 10min, 1h, 2d), or a date or time")
    audit.add_argument("--who", metavar="NAME", help="a token's name, stdio, http, operator, or a service")
    audit.add_argument("--operation", metavar="GLOB", help="such as noyalib_set, or 'yaml_*'")
    audit.add_argument("--failed", action="store_true", help="only what failed or was refused")
    audit.add_argument("-n", dest="count", metavar="N", type=int, help="the last N (default: 50; with --since, all)")
    _json(audit, help="the lines as they are written, one object each")
    for one in (logs, audit):
        one.add_argument("-f", "--follow", action="store_true", help="print new lines as they are written")


BACKUP_EPILOG = """\
examples:
  linckia backup /mnt/backup/linckia           a snapshot of this moment; only what is new is copied
  linckia backup /mnt/backup/linckia --keep 14
  linckia backup linckia.tar                   a file with this one alone
  linckia backup --list /mnt/backup/linckia

Linckia goes on serving meanwhile, or need not run. Whatever was acknowledged before the moment is in the backup. It has
what clients stored, the settings, tokens and keys in the data directory; indexes are left out and rebuilt.
"""

RESTORE_EPILOG = """\
examples:
  linckia restore-backup /mnt/backup/linckia --data ~/linckia-again
  linckia restore-backup /mnt/backup/linckia --at 20261123T1700 --replace
"""


def _backups(command: _AddCommand) -> None:
    backup = command("backup", "backup", "save all that is stored, as it is at one moment", BACKUP_EPILOG)
    target_help = "a folder of snapshots, or FILE.tar (default: `to` in [backup] of the settings)"
    backup.add_argument("target", metavar="TARGET", nargs="?", help=target_help)
    backup.add_argument("--list", action="store_true", help="the snapshots that are there")
    backup.add_argument("--keep", metavar="N", type=int, help="remove all but the newest N snapshots of these data")
    backup.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    _json(backup)
    restore = command("restore-backup", "backup", "make a data directory from a backup", RESTORE_EPILOG)
    restore.add_argument("source", metavar="SOURCE", help="a folder of snapshots, or FILE.tar")
    restore.add_argument("--at", metavar="SNAPSHOT", help="its id, or the beginning of it (default: the newest)")
    restore.add_argument("--replace", action="store_true", help="move what is in the data directory aside")


TOKEN_EPILOG = """\
examples:
  linckia token create ci --surface files --root ~/notes --read-only --expires 30d
  linckia token list
  linckia token revoke ci

A client sends its token as `Authorization: Bearer TOKEN`. Only a hash is kept, so it is printed once. A token that is
revoked is worth nothing from then on, in sessions that are open as well.
"""


def _access(command: _AddCommand) -> None:
    token = command("token", "token", "make, list or revoke tokens for clients over HTTP", TOKEN_EPILOG)
    token.add_argument("action", choices=("create", "list", "revoke"), help="what to do")
    token.add_argument("name", metavar="NAME", nargs="?", help="of the token to create or to revoke")
    surface_help = "only operations on this surface, at its URL; may be repeated (default: all)"
    token.add_argument("--surface", metavar="SURFACE", dest="surfaces", action="append", help=surface_help)
    root_help = "only files at or below this folder, of those below the roots; may be repeated (default: all)"
    token.add_argument("--root", metavar="PATH", dest="roots", action="append", help=root_help)
    token.add_argument("--read-only", action="store_true", help="only what changes nothing")
    expires_help = "when it ends: after a span (30d, 12h, 4w), or with the beginning of a day (default: never)"
    token.add_argument("--expires", metavar="WHEN", help=expires_help)
    rate_help = "how often: 600/min, 10/s or 5000/h (default: http.rate in the settings); then calls are Overloaded"
    token.add_argument("--rate", metavar="RATE", help=rate_help)
    _json(token, help="as JSON")


COMPLETION_EPILOG = """\
bash:  linckia completion bash > ~/.local/share/bash-completion/completions/linckia
zsh:   linckia completion zsh > "${fpath[1]}/_linckia"
fish:  linckia completion fish > ~/.config/fish/completions/linckia.fish
"""


SERVICE_EPILOG = """\
examples:
  linckia service install ~/notes              a unit of yours, started at your log-in
  linckia service show ~/notes --no-http       print it
"""


def _machine(command: _AddCommand) -> None:
    doctor = command("doctor", "doctor", "what this machine offers and what it lacks, with the remedy for each")
    _json(doctor, help="as JSON")
    verify = "also read every stored document and compare it with its hash"
    doctor.add_argument("--verify", action="store_true", help=verify)
    repair = "also put right what can be: damaged indexes, modes of files with secrets, what dead processes left"
    doctor.add_argument("--repair", action="store_true", help=repair)

    completion = command("completion", "completion", "a completion script for your shell", COMPLETION_EPILOG)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))

    unit = command("service", "service", "run the kernel as a unit of systemd", SERVICE_EPILOG)
    unit.add_argument("action", choices=("install", "remove", "show"), help="`show` prints it and changes nothing")
    unit.add_argument("paths", metavar="PATH", nargs="*", help="the roots")
    unit.add_argument("--system", action="store_true", help="of the machine, as root, and not of the user")
    unit.add_argument("--name", default="linckia", help="of the unit (default: linckia)")
    unit_http = unit.add_mutually_exclusive_group()
    unit_http.add_argument("--http", metavar="HOST:PORT", help="as `linckia serve` has it")
    unit_http.add_argument("--no-http", action="store_true", help="do not serve HTTP")
