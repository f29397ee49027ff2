"""`linckia add`, `ls`, `cat`, `grep`, `restore` and `snapshots`: stored documents for people at a terminal."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernel.cli import table
from kernel.cli.main import Failed, Usage
from kernel.control.address import find_data_dir
from kernel.control.client import CallFailed, Client
from kernel.json_types import JsonObject

PIECE_BYTES = 1024 * 1024
PAGE = 1000
PATIENCE_S = 60.0

OnProgress = Callable[[JsonObject], None]


def _client(arguments: argparse.Namespace) -> Client:
    return Client(find_data_dir(arguments.data, os.environ))


def _json(answer: object) -> None:
    print(json.dumps(answer, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def _call(client: Client, name: str, params: JsonObject, on_progress: OnProgress | None = None) -> JsonObject:
    """Call, and call again while the service is being started; each of these operations may be repeated."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer: JsonObject = client.call(name, params, on_progress=on_progress)
            return answer
        except CallFailed as error:
            wait_ms = error.failure.get("retry_after_ms")
            unavailable = error.failure.get("kind") in ("unavailable", "overloaded")
            if not unavailable or wait_ms is None or time.monotonic() > give_up:
                raise
            time.sleep(wait_ms / 1000)


@contextmanager
def _bar(what: str) -> Iterator[OnProgress | None]:
    """A bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)

        def show(report: JsonObject) -> None:
            progress.update(task, completed=report["done"], total=report["total"])

        yield show


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def _pairs(values: list[str] | None) -> list[str]:
    for value in values or []:
        if "=" not in value:
            raise Usage(f"--meta {value!r} is no KEY=VALUE")
    return values or []


def add(arguments: argparse.Namespace) -> int:
    """Store files, directories, or stdin under a name.  Exit code 1 where a file could not be read."""
    common: JsonObject = {"tags": arguments.tag or [], "metadata": _pairs(arguments.meta)}
    if arguments.collection:
        common["collection"] = arguments.collection
    if (arguments.name is not None) == bool(arguments.paths):
        raise Usage("give paths to store, or --name NAME to store what comes on stdin")
    requests: list[JsonObject] = []
    if arguments.name is not None:
        try:
            content = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError:
            raise Failed("stdin is not UTF-8 text; store it from a file") from None
        requests.append({"name": arguments.name, "content": content, **common})
    for path in arguments.paths:
        request = {"path": str(Path(path).expanduser().resolve()), **common}
        for key in ("include", "exclude"):
            if getattr(arguments, key):
                request[key] = getattr(arguments, key)
        if arguments.label:
            request["snapshot_label"] = arguments.label
        if arguments.no_ignore:
            request["no_ignore"] = True
        requests.append(request)
    answers: list[JsonObject] = []
    with _client(arguments) as client:
        for request in requests:
            began = time.monotonic()
            with _bar("storing") as show:
                answer = _call(client, "documents_add", request, show)
            answers.append(answer)
            if not arguments.json:
                print(added(answer, time.monotonic() - began))
            for reason in answer["failed"]:
                print(f"linckia: {reason}", file=sys.stderr)
    if arguments.json:
        _json(answers)
    return 1 if any(answer["failed_count"] for answer in answers) else 0


def added(answer: JsonObject, took_s: float) -> str:
    """One line of what was stored."""
    if answer["snapshot_id"] is None:
        return f"{answer['hash'][:12]}  {size(answer['size'])}  {answer['path']}" + (
            "" if answer["is_new"] else "  (this content was there already)"
        )
    text = f"{answer['path']}: {answer['files']} files, {size(answer['size'])}; {answer['documents_added']} new, "
    text += f"{answer['documents_updated']} changed; {size(answer['bytes_stored'])} were not there before"
    text += f"; {took_s:.1f} s"
    if took_s > 0.1:
        text += f" ({answer['files'] / took_s:.0f} files/s)"
    if answer["failed_count"]:
        text += f"; {answer['failed_count']} could not be read"
    return f"{text}\nsnapshot {answer['snapshot_id']}"


def ls(arguments: argparse.Namespace) -> int:
    """List documents, page by page."""
    params: JsonObject = {"limit": PAGE, "sort_by": arguments.sort}
    if arguments.reverse:
        params["sort_order"] = "desc" if arguments.sort == "name" else "asc"
    for key in ("collection", "extension"):
        if getattr(arguments, key):
            params[key] = getattr(arguments, key)
    if arguments.tag:
        params["tags"] = arguments.tag
    if arguments.pattern:
        params["path"] = arguments.pattern
    documents: list[JsonObject] = []
    offset: int | None = 0
    with _client(arguments) as client:
        while offset is not None:
            page = _call(client, "documents_list", {**params, "offset": offset})
            documents += page["documents"]
            offset = page["next_offset"]
            if arguments.limit and len(documents) >= arguments.limit:
                del documents[arguments.limit :]
                break
    if arguments.json:
        _json({"total": page["total"], "documents": documents})
        return 0
    if arguments.paths:
        for one in documents:
            print(one["path"])
        return 0
    table.show(
        ("HASH", "SIZE", "INDEXED", "PATH"),
        [
            ((one["hash"][:12], "dim"), size(one["size"]), one["indexed"][:19].replace("T", " "), (one["path"], "bold"))
            for one in documents
        ],
    )
    return 0


def cat(arguments: argparse.Namespace) -> int:
    """Write the bytes of documents to stdout, piece by piece; a hash, a name or a path each."""
    with _client(arguments) as client:
        for wanted in arguments.documents:
            first = _found(client, wanted)
            if arguments.json:
                _json(first)
                continue
            offset = 0
            while offset < first["size"]:
                params = {"path": first["path"], "include_content": True, "offset": offset, "length": PIECE_BYTES}
                piece = _call(client, "documents_get", params)
                if piece["hash"] != first["hash"]:
                    raise Failed(f"{first['path']} was changed while it was being read")
                content: str = piece["content"]
                data = base64.b64decode(content) if piece["content_encoding"] == "base64" else content.encode()
                sys.stdout.buffer.write(data)
                offset += piece["content_length"]
            sys.stdout.buffer.flush()
    return 0


def _found(client: Client, wanted: str) -> JsonObject:
    """A document by name or path, else by hash."""
    try:
        return _call(client, "documents_get", {"name": wanted})
    except CallFailed as by_name:
        digits = wanted.removeprefix("sha256:").removeprefix("sha256-").lower()
        if len(digits) < 8 or set(digits) - set("0123456789abcdef"):
            here = Path(wanted).expanduser()
            if not here.exists():
                raise
            return _call(client, "documents_get", {"path": str(here.resolve())})
        try:
            return _call(client, "documents_get", {"hash": wanted})
        except CallFailed:
            raise by_name from None


def grep(arguments: argparse.Namespace) -> int:
    """Print matching lines as grep does.  Exit code 1 where nothing matches."""
    params: JsonObject = {
        "pattern": arguments.pattern, "ignore_case": arguments.ignore_case, "word": arguments.word,
        "literal": arguments.fixed, "count": arguments.count, "files_with_matches": arguments.files_with_matches,
        "context": arguments.context, "max_count": arguments.max_count, "limit": PAGE,
    }  # fmt: skip
    params |= {key: getattr(arguments, key) for key in ("collection", "extension") if getattr(arguments, key)}
    if arguments.paths:
        params["paths"] = arguments.paths
    if arguments.tag:
        params["tags"] = arguments.tag
    matched = 0
    answers: list[JsonObject] = []
    with _client(arguments) as client:
        while True:
            answer = _call(client, "documents_grep", params)
            matched += answer["match_count"]
            for reason in answer["degraded"]:
                print(f"linckia: {reason}", file=sys.stderr)
            if arguments.json:
                answers.append(answer)
            else:
                _lines(answer, arguments.context)
            if answer["next_cursor"] is None:
                break
            params["cursor"] = answer["next_cursor"]
    if arguments.json:
        _json(answers[0] if len(answers) == 1 else answers)
    return 0 if matched else 1


def _lines(answer: JsonObject, context: int) -> None:
    from rich.console import Console
    from rich.text import Text

    terminal = Console(soft_wrap=True, highlight=False) if sys.stdout.isatty() else None

    def line(path: str, mark: str, number: int | None, text: str) -> None:
        numbered = "" if number is None else f"{mark}{number}"
        if terminal is None:
            print(f"{path}{numbered}{mark}{text}" if text or number is not None else path)
        else:
            terminal.print(Text(path, style="magenta") + Text(numbered, style="green")
                           + Text(mark if text or number is not None else "") + Text(text))  # fmt: skip

    for path in answer["files"] or []:
        line(path, "", None, "")
    for one in answer["counts"] or []:
        line(one["file"], ":", None, str(one["count"]))
    for index, match in enumerate(answer["matches"]):
        if context and index:
            print("--")
        first = match["line_number"] - len(match["context_before"])
        for place, text in enumerate(match["context_before"]):
            line(match["file"], "-", first + place, text)
        line(match["file"], ":", match["line_number"], match["line_text"])
        for place, text in enumerate(match["context_after"], match["line_number"] + 1):
            line(match["file"], "-", place, text)


def restore(arguments: argparse.Namespace) -> int:
    """Write a snapshot or a collection below a directory.  Exit code 1 where a file was skipped."""
    if (arguments.snapshot is None) == (arguments.collection is None):
        raise Usage("give a SNAPSHOT (`linckia snapshots` lists them) with --snapshot, or --collection NAME")
    params: JsonObject = {
        "output_directory": str(Path(arguments.directory).expanduser().resolve()),
        "overwrite": arguments.overwrite,
        "dry_run": arguments.dry_run,
    }
    params |= {"snapshot_id": arguments.snapshot} if arguments.snapshot else {"collection": arguments.collection}
    if arguments.include:
        params["include_patterns"] = arguments.include
    if arguments.exclude:
        params["exclude_patterns"] = arguments.exclude
    with _client(arguments) as client, _bar("restoring") as show:
        answer = _call(client, "documents_restore", params, show)
    if arguments.json:
        _json(answer)
    else:
        done = "would be restored" if answer["dry_run"] else "restored"
        skipped = f"; {answer['skipped']} skipped" if answer["skipped"] else ""
        written = f"{answer['files_restored']} files ({size(answer['bytes_restored'])})"
        print(f"{written} {done} below {answer['output_directory']}{skipped}")
    for one in answer["files"]:
        if one["reason"] and not arguments.json:
            print(f"linckia: {one['path']}: {one['reason']}", file=sys.stderr)
    return 1 if answer["skipped"] else 0


def snapshots(arguments: argparse.Namespace) -> int:
    """List the snapshots, the latest first."""
    with _client(arguments) as client:
        answer = _call(client, "documents_list_snapshots", {"limit": arguments.limit} if arguments.limit else {})
    if arguments.json:
        _json(answer)
        return 0
    table.show(
        ("SNAPSHOT", "CREATED", "FILES", "SIZE", "LABEL", "DIRECTORY"),
        [
            ((one["id"], "bold"), one["created"][:19].replace("T", " "), str(one["files"]), size(one["bytes"]),
             one["label"], one["directory"])
            for one in answer["snapshots"]
        ],
    )  # fmt: skip
    return 0
