"""`linckia search` and `linckia ingest`: notes for people at a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kernel.cli import table
from kernel.cli.main import Usage
from kernel.control.address import find_data_dir
from kernel.control.client import CallFailed, Client
from kernel.json_types import JsonObject

SNIPPET_CHARS = 160


def search(arguments: argparse.Namespace) -> int:
    """Print what was found, best first; what did not run goes to stderr.  Raises ControlError, Usage."""
    if not 1 <= arguments.limit <= 1000:
        raise Usage(f"--limit is {arguments.limit}; it is from 1 to 1000")
    params: JsonObject = {"query": " ".join(arguments.query), "limit": arguments.limit}
    params |= {name: value for name in ("path", "since", "until") if (value := getattr(arguments, name)) is not None}
    if arguments.tag:
        params["tags"] = arguments.tag
    with Client(find_data_dir(arguments.data, os.environ)) as client:
        answer: JsonObject = client.call("search_documents", params)
    if arguments.json:
        print(json.dumps(answer, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))
        return 0
    for reason in answer["metadata"]["degraded"]:
        print(f"linckia: {reason}", file=sys.stderr)
    if not answer["results"]:
        print("linckia: nothing was found", file=sys.stderr)
        return 0
    table.show(
        ("SCORE", "NOTE", "WHERE", "PASSAGE"),
        [
            (f"{hit['score']:.3f}", (hit["id"], "bold"), hit["context"], snippet(hit["snippet"]))
            for hit in answer["results"]
        ],
    )
    return 0


def snippet(text: str) -> str:
    """On one line, as much as a line of a terminal can show."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else f"{line[: SNIPPET_CHARS - 1].rstrip()}…"


def ingest(arguments: argparse.Namespace) -> int:
    """Wait until all below the paths is indexed, with progress on a terminal.  Exit code 1 where a note failed.

    Raises:
        ControlError: a path is not below a root, or the kernel ended.
    """
    paths = [str(Path(path).expanduser().resolve()) for path in arguments.paths]
    began = time.monotonic()
    with Client(find_data_dir(arguments.data, os.environ)) as client:
        params = {"paths": paths, "vectors": not arguments.no_vectors}
        if sys.stderr.isatty():
            with _Bars() as bars:
                answer = _patiently(client, params, bars.show)
        else:
            answer = _patiently(client, params, None)
    print(summary(answer, time.monotonic() - began))
    for problem in answer["failed"]:
        print(f"linckia: {problem['path']}: {problem['reason']}", file=sys.stderr)
    return 1 if answer["failed_count"] else 0


def _patiently(client: Client, params: JsonObject, on_progress: Callable[[JsonObject], None] | None) -> JsonObject:
    """Call, and call again where the service died or is being started: the work goes on where it was."""
    while True:
        try:
            answer: JsonObject = client.call("knowledge_ingest", params, on_progress=on_progress)
            return answer
        except CallFailed as error:
            retry_after_ms = error.failure.get("retry_after_ms")
            if error.failure.get("kind") not in ("unavailable", "overloaded") or retry_after_ms is None:
                raise
            time.sleep(retry_after_ms / 1000)


def summary(answer: JsonObject, took_s: float) -> str:
    """One line: how many, how many of them anew, how fast."""
    indexed = answer["indexed"]
    text = f"{answer['notes']} notes are indexed, {indexed} of them anew"
    if indexed:
        text += f", in {took_s:.1f} s ({indexed / max(took_s, 1e-3):.0f} notes/s)"
    if answer["failed_count"]:
        text += f"; {answer['failed_count']} could not be"
    if answer["vectors_waiting"]:
        text += f"; {answer['vectors_waiting']} pieces are not found by meaning yet"
    return text


class _Bars:
    """A bar for each thing that is counted, with its rate and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[said]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: JsonObject = {}
        self._first: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: JsonObject) -> None:
        """One report of the kernel's: `done`, `total`, and a message that begins with what is counted."""
        what, _, said = str(progress["message"] or "").partition(": ")
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, rate="", said="")
            self._first[what] = (time.monotonic(), progress["done"])
        since, before = self._first[what]
        passed = time.monotonic() - since
        rate = f"{(progress['done'] - before) / passed:.0f}/s" if passed > 0.5 else ""
        self._progress.update(
            self._tasks[what], completed=progress["done"], total=progress["total"], rate=rate, said=said
        )
