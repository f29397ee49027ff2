"""The kernel's own commands, in their groups. Those of a service are in `services/NAME/commands.py`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from kernel.cli.servers.options import CLIENTS, add_mcp, add_wrap
from proto.control.commands import AddCommand, Group, add_json

TOP_EPILOG = """\
keys:
  n m c r d   sort by name, memory, processor, calls per second (rate), deaths; again: the other way round
  ↑ ↓ PgUp PgDn Home End   select a service, whose details are at the bottom
  q           quit
"""


SETUP_EPILOG = """\
examples:
  linckia setup
  linckia setup ~/notes ~/code --yes
  linckia setup ~/notes --dry-run

Sets the folders, gets the embedding model, takes over the MCP servers of your clients, starts the kernel, enters it in
the clients, imports past conversations, and answers a question. Each step is a command of its own, and asks first. It
may be repeated.
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

    setup = command("setup", "setup.setup", "set everything up: folders, model, clients, conversations", SETUP_EPILOG)
    setup.add_argument("paths", metavar="PATH", nargs="*", help=paths_help)
    setup.add_argument("--yes", action="store_true", help="ask nothing")
    setup.add_argument("--dry-run", action="store_true", help="only show what would be done")
    setup.add_argument("--question", metavar="TEXT", help="what to ask at the end (default: the name of a note)")

    demo = command("demo", "demo.demo", "show what Linckia does, with a few notes in a temporary folder")
    demo.add_argument("--quick", action="store_true", help="end without waiting for Enter")

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
  linckia backup sftp://backup@example.org/linckia
  linckia backup s3://bucket/linckia --append-only
  linckia backup --verify s3://bucket/linckia  read everything back
  linckia backup --key                         print the key of encrypted backups

Linckia can keep running, but need not. The backup has everything acknowledged before it began: what clients stored, and
the settings, tokens and keys in the data directory. Indexes are left out and rebuilt.

Backups to sftp:// and s3:// are encrypted. Keep their key elsewhere: without it, nobody can read them once this disk is
lost.
"""

RESTORE_EPILOG = """\
examples:
  linckia restore /mnt/backup/linckia --data ~/linckia-again
  linckia restore /mnt/backup/linckia --at 20261123T1700 --replace
  linckia restore s3://bucket/linckia sftp://backup@example.org/linckia --key-file key.txt

Of several places, the one with the newest whole snapshot is taken, and what is damaged in it from another.
"""


def _backups(command: AddCommand) -> None:
    backup = command("backup", "care.backup.backup", "save all stored data, as of one moment", BACKUP_EPILOG)
    target_help = "a folder, FILE.tar, sftp://… or s3://… (default: `to` in [backup] of the settings)"
    backup.add_argument("target", metavar="TARGET", nargs="?", help=target_help)
    backup.add_argument("--list", action="store_true", help="list the snapshots in TARGET")
    backup.add_argument("--keep", metavar="N", type=int, help="remove all but the newest N snapshots of this data")
    backup.add_argument("--verify", action="store_true", help="read everything in TARGET, and name what is damaged")
    backup.add_argument("--key", action="store_true", help="print the key of encrypted backups")
    backup.add_argument("--encrypt", action="store_true", help="encrypt in a folder too; remote places always are")
    backup.add_argument("--append-only", action="store_true", help="never remove or overwrite anything in TARGET")
    # The kernel's own process may not ask the kernel what it serves.
    backup.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    backup.add_argument("--continuous", metavar="SECONDS", type=float, help=argparse.SUPPRESS)
    backup.add_argument("--served-root", action="append", help=argparse.SUPPRESS)
    backup.add_argument("--served-package", action="append", help=argparse.SUPPRESS)
    _access(backup)
    add_json(backup)
    restore = command("restore", "care.backup.restore", "restore a data directory from a backup", RESTORE_EPILOG)
    source_help = "a folder, FILE.tar, sftp://… or s3://… (default: `to` in [backup] of the settings)"
    restore.add_argument("sources", metavar="SOURCE", nargs="*", help=source_help)
    _access(restore)
    restore.add_argument("--at", metavar="SNAPSHOT", help="snapshot id, or its beginning (default: the newest)")
    restore.add_argument("--replace", action="store_true", help="move the data directory's contents aside")


def _access(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--key-file", metavar="FILE", help="file with the key (default: backup.key in the data directory)"
    )
    command.add_argument(
        "--passphrase-file", metavar="FILE", help="file with the passphrase (default: $LINCKIA_BACKUP_PASSPHRASE)"
    )
    command.add_argument("--endpoint", metavar="URL", help="address of an S3 server other than Amazon's")


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


FAMILIES: tuple[tuple[Group, Callable[[AddCommand], None]], ...] = (
    (Group.RUN, _kernel), (Group.USE, _calls), (Group.CONNECT, add_mcp), (Group.CONNECT, add_wrap),
    (Group.DATA, _carry), (Group.DATA, _reembed), (Group.RUN, _services), (Group.DATA, _backups),
    (Group.CONNECT, _token), (Group.CONNECT, _clients), (Group.RUN, _machine),
)  # fmt: skip
"""What declares the commands; those that start most often come first, since no more are declared than needed."""
