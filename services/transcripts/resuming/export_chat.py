"""`linckia export-chat`: writes a conversation as a Markdown or HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from proto.control.commands import Failed, Usage
from proto.control.terminal import connect, pour
from proto.host.durable import replace_file
from services.transcripts.operations.carry import Target
from services.transcripts.resuming.finding import Counts, Several, convert, find, show
from services.transcripts.resuming.resume import write_new


def export_chat(arguments: argparse.Namespace) -> int:
    """Write the file. Exit code 1 if several conversations match. Raises Usage, Failed, ControlError, OSError."""
    if arguments.force and arguments.output is None:
        raise Usage("--force needs --output FILE, the file to replace")
    path = None if arguments.output is None else Path(arguments.output).expanduser().absolute()
    if path is not None and path.exists() and not arguments.force:
        raise Failed(f"{path} exists already; --force replaces it")
    with connect(arguments) as client:
        try:
            chat = find(client, arguments.query)
        except Several as several:
            return show(several)
        pieces = (part.encode() for part in convert(client, chat, Target(arguments.format), Counts()))
        if path is None:
            pour(pieces)
        elif arguments.force:
            replace_file(path, b"".join(pieces))
        else:
            write_new(path, pieces)
    return 0
