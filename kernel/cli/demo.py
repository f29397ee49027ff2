"""`linckia demo`: shows in a minute what Linckia does, with notes of its own in a temporary folder.

The kernel is started as an MCP client would start it, so it ends with this command, whatever ends that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernel.cli.stdio import SERVE, log_end
from proto.control.client import CallFailed, Client, KernelGone, NoKernel
from proto.control.commands import Failed
from proto.control.terminal import say
from proto.host import models
from proto.json_types import JsonObject
from proto.ops.kernel import KernelStatusParams

START_S, END_S = 120.0, 30.0

NOTES = {
    "sea-stars.md": "# Sea stars\n\nLinckia is a genus of sea star that grows back any arm it loses. See [[tides]].\n",
    "tides.md": "# Tides\n\nThe moon pulls the water twice a day. #ocean\n",
    "deploys.md": "# Deploys\n\nWe release on Tuesdays, never before a holiday.\n",
    "bread.md": "# Bread\n\nFlour, water, salt, and a night in the fridge.\n",
    "on-call.md": "# On call\n\nWhoever wears the pager rolls back first and asks later. See [[deploys]].\n",
}

QUESTION, IN_WORDS = "when do we ship new versions", "which day do we release"
"""The second has a word of the note, for a machine without an embedding model."""

CHANGED, OLD, NEW = "deploys.md", "Tuesdays", "Fridays"


def demo(arguments: argparse.Namespace) -> int:
    """Show it. Raises Failed, ControlError, OSError."""
    with tempfile.TemporaryDirectory(prefix="linckia-demo-", ignore_cleanup_errors=True) as held:
        folder = Path(os.path.realpath(held))
        data, notes = folder / "data", folder / "notes"
        notes.mkdir()
        for name, text in NOTES.items():
            (notes / name).write_text(text)
        say(f"Five notes are in {notes}. A kernel starts for them.", flush=True)
        with _kernel(data, notes):
            _show(data, notes)
            if sys.stdin.isatty() and not arguments.quick:
                say("", "Look around, also from another terminal:", f"  {_page(data)}",
                    f"  linckia --data {data} status", flush=True)  # fmt: skip
                say("Enter ends the kernel and removes the folder.", flush=True)
                sys.stdin.readline()
    say("", "The folder is removed. `linckia setup ~/notes` does the same with your notes, and stays.")
    return 0


@contextlib.contextmanager
def _kernel(data: Path, notes: Path) -> Iterator[None]:
    """Run a kernel that ends with its client, which ends with this process: its stdin is a pipe from here."""
    stdio = [*SERVE[:-1], "stdio", "--data", str(data), str(notes)]
    with subprocess.Popen(stdio, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            give_up_at = time.monotonic() + START_S
            while not _runs(data):
                if client.poll() is not None or time.monotonic() > give_up_at:
                    raise Failed(f"the kernel did not start{log_end(data)}")
                time.sleep(0.05)
            yield
        finally:
            assert client.stdin is not None
            client.stdin.close()
            give_up_at = time.monotonic() + END_S
            while _runs(data) and time.monotonic() < give_up_at:
                time.sleep(0.05)


def _runs(data: Path) -> bool:
    try:
        with Client(data) as client:
            client.call(KernelStatusParams())
    except (NoKernel, KernelGone, CallFailed):
        return False
    return True


def _page(data: Path) -> str:
    with Client(data) as client:
        return f"the page: {client.call(KernelStatusParams()).page_url or 'off'}"


def _show(data: Path, notes: Path) -> None:
    _do(data, "ingest", show=False)
    by_meaning = any(map(models.installed, models.AUTOMATIC))
    question = QUESTION if by_meaning else IN_WORDS
    _heading("Ask in your own words" if by_meaning else "Ask in the words of the notes")
    _do(data, "search", "--limit", "1", "--", *question.split())

    _heading("Kill a service while it is in use")
    with Client(data) as client:
        victim = next(each for each in client.call(KernelStatusParams()).services if each.name == "retrieve")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        began = time.perf_counter()
        found: JsonObject = client.call_named("notes_search", {"query": question, "limit": 1})
        took_ms = (time.perf_counter() - began) * 1000
    names = ", ".join(str(each["id"]) for each in found["results"]) or "nothing"
    say(
        f"kill -9 {victim.pid}    # retrieve, which holds the index",
        f"the same question, {took_ms:.0f} ms later: {names}",
    )

    _heading("Undo what an agent changed")
    edit = {"path": str(notes / CHANGED), "edits": [{"old": OLD, "new": NEW}]}
    say(f"An agent calls files_edit {json.dumps(edit['edits'])}")
    with Client(data) as client:
        client.call_named("files_edit", edit)
    say((notes / CHANGED).read_text().rstrip())
    _do(data, "undo", "--last")
    say((notes / CHANGED).read_text().rstrip())


def _heading(text: str) -> None:
    say("", (text, "bold"), flush=True)


def _do(data: Path, *words: str, show: bool = True) -> None:
    from kernel.cli.__main__ import main

    shown = f"$ linckia {' '.join(words)}".replace(" -- ", " ")
    if show:
        say(shown, flush=True)
    with contextlib.ExitStack() as stack:
        if not show:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        if main(["--data", str(data), *words]):
            raise Failed(f"{shown} failed; its reason is above")
