"""`linckia import-transcripts`: conversations out of the files that agents leave on disk.

The files are read here, for the service may touch none of them. What has been kept of a file is remembered with it, so
that the same command, interrupted or repeated, goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel.cli import records
from kernel.cli.main import Failed
from kernel.control.address import find_data_dir
from kernel.control.client import CallFailed, Client
from kernel.json_types import JsonObject

SUFFIXES = (".jsonl", ".ndjson", ".json")
"""Of the files in a folder."""


@dataclass(slots=True)
class _Sum:
    files: int = 0
    messages: int = 0
    nodes: int = 0
    bytes: int = 0
    failed: int = 0


def import_transcripts(arguments: argparse.Namespace) -> int:
    """Read the files, with progress on a terminal.  Exit code 1 where one could not be read.

    Raises:
        ControlError: the kernel ended, or has no transcripts.
        Failed: a path is not there.
    """
    files = list(dict.fromkeys(file for path in arguments.files for file in _files(Path(path).expanduser().resolve())))
    total = _Sum()
    began = time.monotonic()
    with Client(find_data_dir(arguments.data, os.environ)) as client, _progress(files) as advance:
        for file in files:
            _import(client, file, total, advance)
    took_s = max(time.monotonic() - began, 1e-3)
    print(
        f"{total.messages} messages in {total.files} files, {total.nodes} of them new, in {took_s:.1f} s"
        f" ({total.bytes / took_s / 1e6:.1f} MB/s)"
    )
    return 1 if total.failed else 0


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.suffix in SUFFIXES and file.is_file())
    elif path.exists():
        yield path
    else:
        raise Failed(f"{path} is not there")


def _import(client: Client, file: Path, total: _Sum, advance: Callable[[int, str], None]) -> None:
    unreadable, problem, layout = 0, "", ""
    given = done = 0
    try:
        state = _patiently(client, "transcript_import_state", {"source": str(file)})
        size = file.stat().st_size
        for part in records.parts(file, state["position"], state["tail"]):
            answer = _patiently(
                client,
                "transcript_import",
                {
                    "source": str(file),
                    "start": part.start,
                    "position": part.position,
                    "tail": part.tail,
                    "records": part.records,
                    "final": part.final,
                },
            )
            total.messages += answer["messages"]
            total.nodes += answer["nodes"]
            total.bytes += part.position - part.start
            unreadable += answer["unreadable"]
            problem = problem or answer["problem"]
            layout = answer["layout"]
            given += len(part.records)
            done += part.position - part.start
            if part.too_long:
                unreadable += part.too_long
                problem = problem or f"a record is longer than {records.MAX_RECORD_BYTES} bytes"
            if part.incomplete:
                _say(file, "the end is not complete and is left for the next time")
            advance(part.position - part.start, file.name)
    except (OSError, ValueError) as error:
        _say(file, error.strerror if isinstance(error, OSError) and error.strerror else str(error))
        total.failed += 1
        return
    total.files += 1
    # What had been read before.
    advance(max(0, size - done), file.name)
    if given and layout == "none":
        _say(file, "holds no conversation in a form that is known")
        total.failed += 1
    elif unreadable:
        _say(file, f"{unreadable} records were passed over; the first: {problem}")


def _patiently(client: Client, name: str, params: JsonObject) -> Any:
    """Call, and call again where the service died or is being started: a part that was kept is not kept twice."""
    while True:
        try:
            return client.call(name, params)
        except CallFailed as error:
            retry_after_ms = error.failure.get("retry_after_ms")
            if error.failure.get("kind") not in ("unavailable", "overloaded") or retry_after_ms is None:
                raise
            time.sleep(retry_after_ms / 1000)


def _say(file: Path, what: str) -> None:
    print(f"linckia: {file}: {what}", file=sys.stderr)


@contextlib.contextmanager
def _progress(files: list[Path]) -> Iterator[Callable[[int, str], None]]:
    """A bar of the bytes, with rate and time left; none where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda amount, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=sum(file.stat().st_size for file in files))
        yield lambda amount, name: bars.update(task, advance=amount, description=name)
