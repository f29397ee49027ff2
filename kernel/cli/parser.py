"""The commands and their options; completion scripts are generated from this parser too.

If a command calls one operation, its options (`dest`) are named like the operation's parameters, for `params_of`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import NoReturn

from kernel import VERSION
from kernel.cli import EXIT_USAGE, later
from kernel.cli.servers.options import CLIENTS, TAKES_SERVER, add_mcp, add_wrap
from proto.control.address import default_data_dir
from proto.control.commands import AddCommand, Run, add_json
from proto.names import module
from proto.suggestions import did_you_mean, nearest

EPILOG = """\
a first session:
  linckia serve ~/notes &                          start, with ~/notes as the only folder that clients can access
  linckia status                                   the services, and how often each has died
  linckia search what to look for                  find notes about it
  linckia tools                                    list the operations that can be called
  linckia call mcp_echo '{"message": "hello"}'     call one: JSON in, JSON out

for an MCP client's configuration (joins the running kernel, or starts one):
  linckia stdio ~/notes

for the MCP servers that you have already:
  linckia mcp import                               supervise the servers of Claude Code, Cursor, VS Code, …

`linckia help COMMAND` explains a command; `linckia doctor` checks what this machine lacks.
"""


class _Parser(argparse.ArgumentParser):
    _is_mixing = False

    def parse_known_args(  # type: ignore[override]  # argparse declares overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a command that takes a server's command (`TAKES_SERVER`) gets what follows `--` as `server`."""
        if not self.get_default(TAKES_SERVER):
            parsed, unknown = self._mixed(args, namespace)
            strange = [text for text in unknown if text.startswith("-") and text not in ("-", "--")]
            if strange and self.get_default("run"):
                # Only a command knows its options, so it reports this before the whole parser does.
                given = strange[0].partition("=")[0]
                options = [name for action in self._actions for name in action.option_strings]
                near = did_you_mean(given, options) or f"; its options: {', '.join(filter(_is_long, options))}"
                self.error(f"there is no option {given}{near}")
            if unknown and self.get_default("run") and not self._is_mixing:
                self.error(f"one argument too many: {unknown[0]}")
            return parsed, unknown
        argv = list(args or ())
        end = argv.index("--") if "--" in argv else len(argv)
        found, unknown = super().parse_known_args(argv[:end], namespace)
        if unknown and end == len(argv) and not unknown[0].startswith("-"):
            self.error(f"the server's command goes after `--`: {self.prog} … -- {' '.join(unknown)}")
        found.server = argv[end + 1 :]
        return found, unknown

    def _mixed(
        self, args: Sequence[str] | None, namespace: argparse.Namespace | None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; arguments of a command may stand before, between and after its options."""
        if self._is_mixing or not self.get_default("run") or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        # argparse's own message would list every choice, in its own notation.
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(None, f"there is no {action.dest} {value!r}{nearest(str(value), choices)}")


def _is_long(option: str) -> bool:
    return option.startswith("--")


GLOBAL = {"--data": True, "--json": False, "--verbose": False, "-v": False}
"""Options that may also precede the command, and whether they take a value."""


def commands_of(parser: argparse.ArgumentParser) -> Collection[str]:
    """Return the names of the commands."""
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def reordered(argv: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return the command line with global options after the command; `help [COMMAND]` becomes `[COMMAND] --help`."""
    before, given = _apart(argv)
    if given and given[0] == "help" and "help" not in commands:
        return [*given[1:2], "--help"]
    if given and given[0] in commands:
        return [given[0], *before, *given[1:]]
    return before + given


def _apart(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the global options before the command, and the rest."""
    given = list(argv)
    before: list[str] = []
    while given and given[0].partition("=")[0] in GLOBAL:
        takes_value = GLOBAL[given[0].partition("=")[0]] and "=" not in given[0]
        before += [given.pop(0)] + ([given.pop(0)] if takes_value and given else [])
    return before, given


def build_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser for all commands and their options, or for some that include the one that `argv` names."""
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
    data_help = f"data directory; each has its own kernel (default: $LINCKIA_DATA, else {default_data_dir()})"
    data.add_argument("--data", metavar="DIR", help=data_help.replace("%", "%%"))

    def command(name: str, run: Run | str, help: str, epilog: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=help, description=help, epilog=epilog, parents=[data], formatter_class=formatter,
            allow_abbrev=False,
        )  # fmt: skip
        sub.set_defaults(run=later(run) if isinstance(run, str) else run)
        return sub

    own = (_kernel, _calls, add_mcp, add_wrap, _carry, _reembed, _services, _backups, _token, _clients, _machine)
    _, given = _apart(argv)
    for family in chain(own, _of_services()):
        family(command)
        if given and given[0] in commands.choices:
            break
    return parser


def _of_services() -> Iterator[Callable[[AddCommand], None]]:
    """Yield what declares the commands of each service; found by their files, since the kernel names no service."""
    services = module("services")
    for place in import_module(services).__path__:
        for found in sorted(Path(place).glob("*/commands.py")):
            yield import_module(f"{services}.{found.parent.name}.commands").add


TOP_EPILOG = """\
keys:
  n m c r d   sort by name, memory, processor, calls per second (rate), deaths; again: the other way round
  ↑ ↓ PgUp PgDn Home End   select a service, whose details are at the bottom
  q           quit
"""


def _kernel(command: AddCommand) -> None:
    paths_help = "a root: operations on files can access only what is below the roots"
    read_only_help = "clients can change nothing: neither files below the roots, nor data that Linckia stores"
    serve = command("serve", "serve.serve", "run the kernel until Ctrl-C, SIGTERM or `linckia stop` ends it")
    serve.add_argument("paths", metavar="PATH", nargs="*", help=paths_help)
    serve.add_argument("--read-only", action="store_true", help=read_only_help)
    serve.add_argument("--config", metavar="FILE", help="settings that override those in DIR/linckia.toml")
    http = serve.add_mutually_exclusive_group()
    http.add_argument("--http", metavar="HOST:PORT", help="address for MCP over HTTP (default: 127.0.0.1:3000)")
    http.add_argument("--no-http", action="store_true", help="do not serve HTTP")
    token_help = "file with the bearer token for HTTP, required for other addresses than 127.0.0.1; or LINCKIA_TOKEN"
    serve.add_argument("--token-file", metavar="FILE", help=token_help)
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    package_help = "also serve the services of this Python package (PACKAGE.manifest, or PACKAGE.operations and .main)"
    serve.add_argument("--with", metavar="PACKAGE", dest="packages", action="append", help=package_help)
    mcp_help = "also serve the MCP servers in this file of an MCP client (mcpServers, or VS Code's servers)"
    serve.add_argument("--mcp", metavar="FILE", dest="mcp_files", action="append", help=mcp_help)
    serve.add_argument("--ephemeral", action="store_true", help=argparse.SUPPRESS)
    serve.add_argument("--only-mounts", action="store_true", help=argparse.SUPPRESS)

    stdio = command(
        "stdio", "stdio.stdio", "serve MCP on stdin and stdout, for an MCP client's configuration",
        "Joins the kernel of the data directory, or starts one that ends after its last client has left.",
    )  # fmt: skip
    stdio.add_argument("paths", metavar="PATH", nargs="*", help=paths_help)
    stdio.add_argument("--surface", metavar="NAME", default="core", help="tools to list (default: core)")
    stdio.add_argument("--read-only", action="store_true", help=read_only_help)
    stdio.add_argument("--config", metavar="FILE", help="settings, if a kernel has to be started")
    stdio.add_argument(
        "--mcp", metavar="FILE", dest="mcp_files", action="append", help=f"{mcp_help}, if one is started"
    )
    stdio.add_argument("--only-mounts", action="store_true", help=argparse.SUPPRESS)

    status = command("status", "status.status", "show the services: their state, and how often and why each has died")
    status.add_argument("-v", "--verbose", action="store_true", help="everything that is known about each service")
    status.add_argument("--trends", action="store_true", help="deaths and store growth per day, over the last week")
    add_json(status)
    top = command("top", "top.top", "show load and state of all services live", TOP_EPILOG)
    top.add_argument("--interval", metavar="SECONDS", type=float, default=1.0, help="default: 1")


def seconds_option(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


seconds_option.__name__ = "number of seconds"  # argparse uses it in its message about an invalid value


CALL_EPILOG = """\
examples:
  linckia call mcp_echo '{"message": "hello"}'
  echo '{"message": "hello"}' | linckia call mcp_echo -
"""


def _calls(command: AddCommand) -> None:
    call = command("call", "operate.call", "call an operation: JSON in, JSON out", CALL_EPILOG)
    call.add_argument("name", metavar="NAME", help="an operation, as listed by `linckia tools`")
    call.add_argument("params", metavar="JSON", nargs="?", default="{}", help="its parameters; - reads them from stdin")
    call.add_argument("--timeout", metavar="SECONDS", type=seconds_option, help="replaces the operation's own deadline")
    call.add_argument("--task", action="store_true", help="start it as a task that goes on by itself, and print its id")
    call.add_argument("--key", help="idempotency key: repeating the call with it within 24 hours changes nothing more")


AUDIT_EPILOG = """\
examples:
  linckia audit --since 1h
  linckia audit --who ci --failed --follow
  linckia audit --operation 'delete*' --json -n 1000 | jq .target
"""


def _services(command: AddCommand) -> None:
    for name, what in (
        ("restart", "stop a service in order and start it again"),
        ("start", "start a stopped or failed service now"),
    ):
        one = command(name, f"operate.{name}", what)
        one.add_argument("service", metavar="SERVICE", help="a name from `linckia status`")
        add_json(one, help="the kernel's message, as JSON")
    stop = command("stop", "operate.stop", "stop one service, or end the whole kernel in order")
    stop.add_argument("service", metavar="SERVICE", nargs="?", help="default: the kernel itself")
    add_json(stop, help="the kernel's message, as JSON")

    logs = command("logs", "logs.logs", "show the log of a service or of the kernel; needs no running kernel")
    logs.add_argument("service", metavar="SERVICE", nargs="?", default="kernel", help="default: the kernel itself")
    add_json(logs, help="one object for each line; output that was not logged has only a `message`")
    logs.add_argument("-n", "--lines", metavar="N", type=int, default=50, help="number of lines (default: 50)")
    audit = command(
        "audit", "audit.audit", "show who changed what, and what was refused; needs no kernel", AUDIT_EPILOG
    )
    audit.add_argument("--since", metavar="WHEN", help="how long ago (90s, 10min, 1h, 2d), or a date or time")
    audit.add_argument("--who", metavar="NAME", help="a token's name, stdio, http, operator, or a service")
    audit.add_argument("--operation", metavar="GLOB", help="an operation, such as yaml_set, or 'yaml_*'")
    audit.add_argument("--failed", action="store_true", help="only what failed or was refused")
    audit.add_argument("-n", dest="count", metavar="N", type=int, help="the last N (default: 50; with --since, all)")
    add_json(audit, help="the lines as written, one object each")
    for one in (logs, audit):
        one.add_argument("-f", "--follow", action="store_true", help="print new lines as they are written")


IMPORT_FROM_EPILOG = """\
examples:
  linckia export ~/linckia-export
  linckia import --data OTHER ~/linckia-export        importing again changes nothing
  linckia import --from tapes tapes.sqlite            the conversations of tapes
  linckia import --from space-browser disk.db         the resource sets, sources and plans of mcp-space-browser
"""

SYNC_EPILOG = """\
examples:
  linckia token create laptop --sync                            on the other machine; prints the token
  linckia sync https://desk.example --token-file ~/desk.token   on this one
  linckia sync https://desk.example --token-file ~/desk.token --every 5min

Both kernels end with the same conversations and memories. What was deleted on one side is deleted on the other. If both
sides corrected a memory, both texts are kept. Memories of single MCP sessions stay where they are. Repeat an
interrupted sync to go on. Ends with status 1 if something could not be joined.
"""


def _carry(command: AddCommand) -> None:
    export = command(
        "export", "carry.export.export", "export your data as JSON Lines and files that any program can read"
    )
    export.add_argument("directory", metavar="DIR", help="a new or empty directory")
    importing = command(
        "import", "carry.importing.import_data", "import an export, or another program's database", IMPORT_FROM_EPILOG
    )
    importing.add_argument("source", metavar="PATH", help="the directory of the export, or the database")
    from_help = "the program that the database belongs to"
    importing.add_argument("--from", dest="origin", choices=("tapes", "space-browser"), help=from_help)
    syncing = command(
        "sync", "carry.sync.sync", "join conversations and memories with the kernel of another machine", SYNC_EPILOG
    )
    syncing.add_argument(
        "url", metavar="URL", help="its address, such as https://desk.example or http://127.0.0.1:3001"
    )
    token_help = "file with a token that was made there by `linckia token create NAME --sync`; or LINCKIA_SYNC_TOKEN"
    syncing.add_argument("--token-file", metavar="FILE", help=token_help)
    syncing.add_argument("--only", choices=("chats", "memory"), help="only these (default: both)")
    repeat = syncing.add_mutually_exclusive_group()
    repeat.add_argument("--every", metavar="SPAN", help="until Ctrl-C, with this pause (90s, 5min, 1h)")
    repeat.add_argument("--once", action="store_true", help="one time (the default)")
    syncing.add_argument("--dry-run", action="store_true", help="compare, and change nothing")
    plain_help = "allow http:// to other machines: whoever can read the network's traffic gets the token and all data"
    syncing.add_argument("--plain-http", action="store_true", help=plain_help)
    timeout_help = "how long to wait for each answer (default: 150)"
    syncing.add_argument("--timeout", metavar="SECONDS", type=float, default=150.0, help=timeout_help)
    add_json(syncing, help="what came, went and was deleted, as JSON")


REEMBED_EPILOG = """\
examples:
  linckia reembed
  linckia reembed --cluster
  linckia reembed --cluster --collection documents

Items without a vector of the model in use wait in the outbox of their collection, and the kernel embeds them on its
own. This shows the progress; with --cluster, nodes take part. After a change of the model, all items wait. Repeat an
interrupted command to go on with what is left.
"""


def _reembed(command: AddCommand) -> None:
    reembed = command(
        "reembed",
        "reembed.reembed",
        "make the vectors that are missing, here or on the nodes of a cluster",
        REEMBED_EPILOG,
    )
    reembed.add_argument("--cluster", action="store_true", help="on the nodes of the Ray cluster of [cluster]")
    reembed.add_argument("--collection", metavar="NAME", help="only this one; a client's has own. before its name")


BACKUP_EPILOG = """\
examples:
  linckia backup /mnt/backup/linckia           make a snapshot; only new data is copied
  linckia backup /mnt/backup/linckia --keep 14
  linckia backup linckia.tar                   make a file with this snapshot only
  linckia backup --list /mnt/backup/linckia

Linckia can keep running, but need not. The backup has everything acknowledged before it began: what clients stored, and
the settings, tokens and keys in the data directory. Indexes are left out and rebuilt.
"""

RESTORE_EPILOG = """\
examples:
  linckia restore-backup /mnt/backup/linckia --data ~/linckia-again
  linckia restore-backup /mnt/backup/linckia --at 20261123T1700 --replace
"""


def _backups(command: AddCommand) -> None:
    backup = command("backup", "care.backup.backup", "save all stored data, as of one moment", BACKUP_EPILOG)
    target_help = "a folder of snapshots, or FILE.tar (default: `to` in [backup] of the settings)"
    backup.add_argument("target", metavar="TARGET", nargs="?", help=target_help)
    backup.add_argument("--list", action="store_true", help="list the snapshots in TARGET")
    backup.add_argument("--keep", metavar="N", type=int, help="remove all but the newest N snapshots of this data")
    backup.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    add_json(backup)
    restore = command(
        "restore-backup", "care.backup.restore_backup", "restore a data directory from a backup", RESTORE_EPILOG
    )
    restore.add_argument("source", metavar="SOURCE", help="a folder of snapshots, or FILE.tar")
    restore.add_argument("--at", metavar="SNAPSHOT", help="snapshot id, or its beginning (default: the newest)")
    restore.add_argument("--replace", action="store_true", help="move the data directory's contents aside")


TOKEN_EPILOG = """\
examples:
  linckia token create ci --surface files --root ~/notes --read-only --expires 30d
  linckia token create laptop --sync
  linckia token list
  linckia token revoke ci

A client sends its token as `Authorization: Bearer TOKEN`. The token is printed once, since only its hash is stored.
Revoking a token takes effect at once, also in open sessions.
"""


def _token(command: AddCommand) -> None:
    token = command("token", "token.token", "create, list or revoke tokens for clients over HTTP", TOKEN_EPILOG)
    token.add_argument("action", choices=("create", "list", "revoke"), help="what to do")
    token.add_argument("name", metavar="NAME", nargs="?", help="the token to create or revoke")
    surface_help = "only operations on this surface, at its URL; may be repeated (default: all)"
    token.add_argument("--surface", metavar="SURFACE", dest="surfaces", action="append", help=surface_help)
    sync_help = "only for `linckia sync` of another machine, which reads, writes and deletes all chats and memories"
    token.add_argument("--sync", action="store_true", help=sync_help)
    root_help = "only files at or below this folder, which must be below a root; may be repeated (default: all)"
    token.add_argument("--root", metavar="PATH", dest="roots", action="append", help=root_help)
    token.add_argument("--read-only", action="store_true", help="only operations that change nothing")
    expires_help = "when it expires: after a time span (30d, 12h, 4w), or at the start of a day (default: never)"
    token.add_argument("--expires", metavar="WHEN", help=expires_help)
    rate_help = "maximum rate: 600/min, 10/s or 5000/h (default: http.rate in the settings); beyond it, Overloaded"
    token.add_argument("--rate", metavar="RATE", help=rate_help)
    add_json(token, help="as JSON")


COMPLETION_EPILOG = """\
bash:  linckia completion bash > ~/.local/share/bash-completion/completions/linckia
zsh:   linckia completion zsh > "${fpath[1]}/_linckia"
fish:  linckia completion fish > ~/.config/fish/completions/linckia.fish
tcsh:  linckia completion tcsh > ~/.linckia.tcsh, and `source ~/.linckia.tcsh` in ~/.tcshrc
"""


MODELS_EPILOG = """\
examples:
  linckia models                               list models known to be good, and which are downloaded
  linckia models get bge-small-en-v1.5         download one, or resume its download
  linckia models use bge-small-en-v1.5         use it for search or reranking, whichever it is made for
"""


SERVICE_EPILOG = """\
examples:
  linckia service install ~/notes              install a user unit, started at login
  linckia service show ~/notes --no-http       print it
"""


INSTALL_EPILOG = """\
examples:
  linckia install-client claude-desktop ~/notes
  linckia install-client vscode --project ~/notes
  linckia install-client cursor --http         use the kernel that `linckia serve` runs
  linckia install-client claude-desktop --undo

The change is shown first and confirmed. A copy of the old file is kept beside it.
"""


def _clients(command: AddCommand) -> None:
    client = command(
        "install-client",
        "clients.install_client.install_client",
        "enter Linckia in an MCP client's settings",
        INSTALL_EPILOG,
    )
    client.add_argument("client", metavar="CLIENT", choices=CLIENTS, help=", ".join(CLIENTS))
    client.add_argument("paths", metavar="PATH", nargs="*", help="the roots: folders whose files it may access")
    client.add_argument("--project", action="store_true", help="in the settings of the project in this folder")
    client.add_argument("--name", metavar="NAME", default="linckia", help="name of the entry (default: linckia)")
    client.add_argument("--surface", metavar="NAME", help="tools to list (default: core)")
    client.add_argument("--http", action="store_true", help="connect to the running kernel, with a token of its own")
    client.add_argument("--undo", action="store_true", help="take the entry out, or restore what was there before")
    client.add_argument("--dry-run", action="store_true", help="only show the change")
    client.add_argument("--yes", action="store_true", help="do not ask")


def _machine(command: AddCommand) -> None:
    doctor = command("doctor", "care.doctor.doctor", "check what this machine provides and lacks, with remedies")
    add_json(doctor, help="as JSON")
    verify = "also read every stored document and compare it with its hash"
    doctor.add_argument("--verify", action="store_true", help=verify)
    repair = "also repair damaged indexes and modes of files with secrets, and remove leftovers of dead processes"
    # The kernel gives its status to the command that it runs, which may not connect to it.
    doctor.add_argument("--status", metavar="-", help=argparse.SUPPRESS)
    doctor.add_argument("--repair", action="store_true", help=repair)

    models = command("models", "models.models", "models for search and reranking: list, download, use", MODELS_EPILOG)
    models.add_argument("action", choices=("list", "get", "use"), nargs="?", default="list", help="default: list")
    models.add_argument("name", metavar="NAME", nargs="?", help="a listed name; for `use`, also a folder or an id")
    add_json(models)

    completion = command(
        "completion", "completion.completion", "print a completion script for your shell", COMPLETION_EPILOG
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="your shell")

    unit = command("service", "service.service", "run the kernel as a systemd unit", SERVICE_EPILOG)
    unit.add_argument("action", choices=("install", "remove", "show"), help="`show` prints it and changes nothing")
    unit.add_argument("paths", metavar="PATH", nargs="*", help="the roots")
    unit.add_argument("--system", action="store_true", help="a unit of the system, run as root, instead of the user")
    unit.add_argument("--name", default="linckia", help="name of the unit (default: linckia)")
    unit_http = unit.add_mutually_exclusive_group()
    unit_http.add_argument("--http", metavar="HOST:PORT", help="as for `linckia serve`")
    unit_http.add_argument("--no-http", action="store_true", help="do not serve HTTP")
