"""The command of mounted servers that needs no kernel: `linckia torture`, a storm over any MCP server."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from proto.control.commands import TAKES_SERVER, AddCommand, Failed, Group, Usage, add_json
from proto.names import module
from services.mounts.process import guardian
from services.mounts.torture.kinds import MARK, STORMS

if TYPE_CHECKING:
    from services.mounts.torture.options import Call, Options

GROUP = Group.CONNECT

WORKER = module("services.mounts.torture")
ENDS_S = 10.0
INTERRUPTED = 130

EPILOG = """\
examples:
  linckia torture -- npx -y @modelcontextprotocol/server-everything
  linckia torture --only kills,ends --seconds 20 -- python my_server.py
  linckia torture --write 'add_note {"text": "$ID"}' --read 'list_notes {}' -- my-server

Only tools that are marked as read-only are called, unless --call or --write names others. The storm kills the server
over and over: give it data that may be lost. Exits with 0 if nothing is wrong, 1 if something is, 2 if the server or
the options cannot be used.

storms:
"""


def add(command: AddCommand) -> None:
    """Add `linckia torture`."""
    storms = "\n".join(f"  {name:9} {what}" for name, what in STORMS.items())
    parser = command(
        "torture", torture, "storm any MCP server, and report what it loses, doubles or leaves behind", EPILOG + storms
    )
    parser.add_argument("--seed", type=int, metavar="N", help="order and details of the storm (random)")
    parser.add_argument("--seconds", type=float, metavar="N", default=60.0, help="how long, about (60)")
    parser.add_argument("--limit", type=float, metavar="SECONDS", default=10.0, help="time for one answer (10)")
    parser.add_argument("--only", metavar="STORMS", help="only these storms, with commas between them")
    parser.add_argument("--skip", metavar="STORMS", help="all storms but these")
    for name, help in (
        ("--write", "a tool that stores something, with `$ID` in its arguments"),
        ("--read", "the tool that gives back all that --write has stored"),
    ):
        parser.add_argument(name, metavar="'TOOL JSON'", help=help)
    parser.add_argument(
        "--call", metavar="'TOOL JSON'", action="append", default=[],
        help="call this instead of the read-only tools; it may be given several times",
    )  # fmt: skip
    parser.add_argument("--verbose", "-v", action="store_true", help="say on stderr what happens")
    add_json(parser, help="the report as JSON")
    parser.set_defaults(**{TAKES_SERVER: True})


def torture(arguments: argparse.Namespace) -> int:
    """Make the storm in a process of its own, below a guardian that leaves nothing behind."""
    import msgspec

    options = _options(arguments)
    guardian.become_subreaper()
    lived, life = os.pipe()
    said, status = os.pipe()
    worker = [sys.executable, "-P", "-m", WORKER, msgspec.json.encode(options).decode()]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, str(lived), str(status), "0", *worker],
        stdin=subprocess.DEVNULL, pass_fds=(lived, status), start_new_session=True,
    )  # fmt: skip
    os.close(lived)
    os.close(status)
    pid, ended = 0, ""
    try:
        with open(said) as lines:
            try:
                pid = int(lines.readline().removeprefix("pid ") or 0)
                ended = lines.readline().strip()
            except KeyboardInterrupt:
                # The worker reports what it has found until now.
                if pid:
                    os.kill(pid, signal.SIGINT)
                process.wait(ENDS_S)
                return INTERRUPTED
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        return INTERRUPTED
    finally:
        os.close(life)
        process.wait()
        guardian.end_all()
    if ended.startswith("exit "):
        return int(ended.removeprefix("exit "))
    raise Failed(f"the storm itself was ended ({ended or 'its guardian was killed'}); nothing of the server is left")


def _options(arguments: argparse.Namespace) -> Options:
    from services.mounts.torture.options import Options

    if not arguments.server:
        raise Usage("which server? Its command goes after `--`: linckia torture -- COMMAND …")
    if (arguments.write is None) != (arguments.read is None):
        raise Usage("--write and --read belong together: one stores `$ID`, the other gives it back")
    write = _call("--write", arguments.write) if arguments.write else None
    if write is not None and MARK not in json.dumps(write.arguments):
        raise Usage('--write needs `$ID` in its arguments, as in: --write \'add_note {"text": "$ID"}\'')
    for name, number in (("--seconds", arguments.seconds), ("--limit", arguments.limit)):
        if not 0 < number < math.inf:
            raise Usage(f"{name} is {number:g}; it must be a number greater than 0")
    only = _storms(arguments.only) if arguments.only else list(STORMS)
    skip = _storms(arguments.skip) if arguments.skip else []
    if not (storms := [name for name in only if name not in skip]):
        raise Usage(f"--only and --skip leave no storm; there are {', '.join(STORMS)}")
    return Options(
        command=arguments.server,
        seed=random.randrange(1_000_000) if arguments.seed is None else arguments.seed,
        seconds=arguments.seconds,
        storms=storms,
        limit_s=arguments.limit,
        calls=[_call("--call", text) for text in arguments.call],
        write=write,
        read=_call("--read", arguments.read) if arguments.read else None,
        json=arguments.json,
        verbose=arguments.verbose,
    )


def _storms(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in STORMS]:
        raise Usage(f"there is no storm {unknown[0]!r}; there are {', '.join(STORMS)}")
    return names


def _call(option: str, text: str) -> Call:
    from services.mounts.torture.options import Call

    tool, _, rest = text.strip().partition(" ")
    try:
        arguments = json.loads(rest or "{}")
    except ValueError as error:
        raise Usage(f"{option} {text!r}: the arguments are no JSON: {error}") from None
    if not tool or not isinstance(arguments, dict):
        raise Usage(f"{option} needs a tool and a JSON object, as in: {option} 'NAME {{}}'")
    return Call(tool, arguments)
