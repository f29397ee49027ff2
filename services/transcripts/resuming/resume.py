"""`linckia resume`: writes a conversation into another agent's folder, and says how to go on with it there."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proto.control.commands import Failed, Usage
from proto.control.terminal import connect, counted, say, show_json
from proto.host.durable import sync_folder
from services.transcripts.operations.carry import NewSession, Target
from services.transcripts.resuming.finding import Chat, Counts, Several, convert, find, show
from services.transcripts.resuming.places import COMMANDS, place


class Agent(NamedTuple):
    """Where an agent's folder is; `variable` names it, or with `below` the folder that contains it."""

    variable: str
    folder: str
    below: str = ""


AGENTS = {
    "claude": Agent("CLAUDE_CONFIG_DIR", "~/.claude"),
    "codex": Agent("CODEX_HOME", "~/.codex"),
    "gemini": Agent("GEMINI_CLI_HOME", "~/.gemini", below=".gemini"),
}


def resume(arguments: argparse.Namespace) -> int:
    """Write the conversation. Exit code 1 if several match. Raises Usage, Failed, ControlError, OSError."""
    agent, counts = AGENTS[arguments.agent], Counts()
    now = datetime.datetime.now(datetime.UTC)
    with connect(arguments) as client:
        try:
            chat = find(client, arguments.query)
        except Several as several:
            return show(several, as_json=arguments.json)
        project = str(_project(arguments.project, chat))
        session = NewSession(id=str(uuid.uuid4()), project=project, at=now.timestamp())
        home = _home(agent, arguments.folder)
        path = place(arguments.agent, home, session.id, project, now)
        parts = convert(client, chat, Target(arguments.agent), counts, session)
        if arguments.dry_run:
            for _ in parts:
                pass
        else:
            write_new(path, (part.encode() for part in _not_empty(parts, counts)))
    about, command = chat.about, _command(arguments, agent, home, session)
    left_out = {
        "turns of sub-agents": counts.side,
        "turns of other branches, or before a compaction": counts.elsewhere,
        "system prompts": counts.system,
        "deleted turns": counts.deleted,
    }
    if arguments.json:
        told = {
            "conversation": about.id, "title": about.title, "agent": arguments.agent, "session": session.id,
            "path": str(path), "written": not arguments.dry_run, "turns": counts.turns, "left_out": left_out,
            "command": command,
        }  # fmt: skip
        show_json(told)
        return 0
    say(
        f"{about.title or about.id} ({about.agent or about.provider}, {about.ended[:10]})",
        f"{'would write' if arguments.dry_run else 'wrote'} {counted(counts.turns, 'turn')} to {path}",
        *(f"left out: {count:,} {what}" for what, count in left_out.items() if count),
    )
    if not arguments.dry_run:
        say("", command)
    return 0


def _not_empty(parts: Iterator[str], counts: Counts) -> Iterator[str]:
    yield from parts
    if not counts.turns:
        raise Failed("the conversation has no turns to go on from")


def _project(given: str | None, chat: Chat) -> Path:
    """Return the working folder: the given one, the conversation's own, or the current one. Raises Usage, Failed."""
    if given is not None:
        folder = Path(given).expanduser().resolve()
        if not folder.is_dir():
            raise Usage(f"--project {given}: not a folder; name the one in which the agent will work")
        return folder
    stated = chat.about.project
    if not os.path.isabs(stated):
        return Path.cwd()
    folder = Path(stated)
    if not folder.is_dir():
        raise Failed(f"the conversation's folder {stated} does not exist here; name another with --project DIR")
    return folder.resolve()


def _home(agent: Agent, given: str | None) -> Path:
    """Return the agent's folder."""
    if given is not None:
        return Path(given).expanduser().resolve()
    named = os.environ.get(agent.variable, "").strip()
    if named:
        return (Path(named).expanduser() / agent.below).absolute()
    return Path(agent.folder).expanduser().absolute()


def _command(arguments: argparse.Namespace, agent: Agent, home: Path, session: NewSession) -> str:
    """Return the command that resumes a session; it names the agent's folder if that is not the usual one."""
    begin, command = f"cd {shlex.quote(session.project)} && ", f"{COMMANDS[arguments.agent]} {session.id}"
    if arguments.folder is None or home == _home(agent, None).resolve():
        return f"{begin}{command}"
    if agent.below and home.name != agent.below:
        return f"{begin}{command}    # once {home} is {agent.folder}"
    folder = home.parent if agent.below else home
    return f"{begin}{agent.variable}={shlex.quote(str(folder))} {command}"


def write_new(path: Path, pieces: Iterator[bytes]) -> None:
    """Write a new file that is complete and on disk once it has its name. Raises Failed if it exists; OSError."""
    folders = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in folders:
        sync_folder(folder.parent)
    unfinished = path.with_name(f".linckia-{uuid.uuid4()}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fsync(descriptor)
        try:
            # A link never replaces a file, unlike a renaming.
            os.link(unfinished, path)
        except FileExistsError:
            raise Failed(f"{path} exists already; nothing was written") from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    sync_folder(path.parent)
