"""`linckia export`: data that users made, as JSON Lines and files that can be read without Linckia.

It is read page by page through the operations, and written to `DIR.partial`, which is renamed to `DIR` when complete.
The order follows the data, so that two exports of the same data are identical.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from kernel.cli.care.exposure import require_out_of_reach
from kernel.cli.carry.files import (
    BytesClient,
    ahead,
    batched,
    by_next,
    by_offset,
    declared,
    line,
    listed,
    named,
    write,
)
from proto.control.client import CallFailed, Client
from proto.control.commands import Failed
from proto.control.terminal import Bars, OnProgress, complain, connect, say
from proto.json_types import JsonObject
from proto.manifest import Export

T = TypeVar("T")

FORMAT = 1

REPORTED = 200
"""Number of items after which progress is reported."""

DOCUMENTS = 1000
"""Number of documents whose contents are read together: as many as a page of them has."""

README = """\
# An export of Linckia

Data made with Linckia, readable by any program. Each `.jsonl` file has one JSON object per line, in UTF-8. `linckia
import DIR` imports it again and keeps existing data, so it may be repeated. Format 1.

- `documents/documents.jsonl`: documents by path. `file` is the content below `documents/`, `hash` its SHA-256; times
  are nanoseconds since 1970. Documents with the same content share one file, named by its hash.
- `documents/sessions.jsonl`, `documents/snapshots.jsonl`: in order of creation; `listing` names the file that lists
  the files of a snapshot, each with the hash of its content, which is also in `documents/contents/`.
- `transcripts/YYYY-MM/TIME-HASH.jsonl`: a conversation with all its branches, parents first. `hash` is the SHA-256 of
  the canonical JSON (RFC 8785) of the turn and its `parent_hash`; `at` is in Unix seconds. A deleted turn that others
  follow is only a placeholder (`gone`).
- `transcripts/prompts.jsonl`: system prompts; turns refer to them by `prompt`, the first 32 digits of their SHA-256.
  `transcripts/barred.jsonl`: digests of deleted turns that must not return.
- `files/sets.jsonl`, `files/entries.jsonl`, `files/queries.jsonl`, `files/sources.jsonl`, `files/plans.jsonl`: resource
  sets with their children, their entries, saved queries, sources and plans, by name, as accepted by the tools that
  create them. `files/runs.jsonl`: finished runs of plans, each with the plan as it was then; times are nanoseconds.
- `collections/NAME.jsonl`: one of your collections. The first line has the `dimensions` of its vectors (null if it
  takes text); each other line is a document. Vectors have length 1 and 16 bits per number.
{exports}

Notes and their tags are in their Markdown files. Search indexes, the graph, pictures and the index of the file system
are derived from this data and from the folders. Not included: the trash (restore it first), settings, tokens.
"""

FILE_PARTS = {
    "queries": ("queries_list", "queries", ("name", "description", "query")),
    "sources": (
        "sources_list", "sources", ("name", "type", "path", "enabled", "watch_recursive", "debounce_ms"),
    ),
    "plans": (
        "plans_list", "plans", ("name", "description", "mode", "status", "sources", "conditions", "outcomes"),
    ),
}  # fmt: skip
"""For each file: the list operation, the key of its items, and the fields that users set."""


def export(arguments: argparse.Namespace) -> int:
    """Export everything. Raises ControlError, Failed, Usage."""
    target = Path(arguments.directory).expanduser().resolve()
    require_out_of_reach(target, arguments, "the data of all clients")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Failed(f"{target} already exists; name a new or an empty directory")
    part = target.with_name(f"{target.name}.partial")
    if (part / "export.json").is_file():
        # It is left over from an interrupted export.
        shutil.rmtree(part)
    # Others on this machine may not read it either.
    part.mkdir(mode=0o700, parents=True)
    (part / "export.json").write_text(json.dumps({"linckia_export": FORMAT}) + "\n")
    with connect(arguments) as client, BytesClient(arguments.data_dir) as reader, Bars() as show:
        steps = Steps(show)
        simple = declared(client)
        (part / "README.md").write_text(README.replace("{exports}", "\n".join(_described(simple))))
        parts: dict[str, Callable[[Client, Path], str]] = {
            "documents": partial(_documents, steps, reader), "transcripts": partial(_transcripts, steps),
            "files": _files, "collections": partial(_collections, steps),
            **{name: partial(_simple, exports) for name, exports in simple.items()},
        }  # fmt: skip
        for name, write_part in parts.items():
            try:
                say(f"{name}: {write_part(client, part / name)}")
            except CallFailed as error:
                if error.failure.get("kind") != "unknown_operation":
                    raise
                complain(f"{name} is disabled, so the export does not include it")
                shutil.rmtree(part / name, ignore_errors=True)
    if target.exists():
        target.rmdir()
    part.rename(target)
    return 0


class Steps:
    """Reports the progress of an export."""

    def __init__(self, show: OnProgress | None) -> None:
        self._show = show

    def counted(self, items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Yield the items, and report every few hundred how many have passed."""
        count = 0
        for count, item in enumerate(items, 1):  # the last count is reported
            yield item
            if self._show is not None and count % REPORTED == 0:
                self._show({"done": count, "total": total, "message": f"{what}: "})


# Documents


def content_file(folder: str, hash_: str) -> str:
    """Return the file of this content in the folder of the documents."""
    return f"{folder}/contents/{hash_[:2]}/{hash_}"


def _documents(steps: Steps, reader: Client, client: Client, folder: Path) -> str:
    contents = _Contents(reader, client, folder)
    total = named(client, "documents_list", {"limit": 1})["total"]
    rows = steps.counted(_document_rows(reader, contents), "documents", total)
    documents = write(folder / "documents.jsonl", rows)
    work = named(client, "documents_export_work", {})
    write(folder / "sessions.jsonl", work["sessions"])
    for number, snapshot in enumerate(work["snapshots"], 1):
        snapshot["listing"] = f"snapshots/{number:06}.jsonl"
        listing = steps.counted(_listing(reader, contents, snapshot["id"]), f"snapshot {number}", snapshot["files"])
        write(folder / snapshot["listing"], listing)
    write(folder / "snapshots.jsonl", work["snapshots"])
    return f"{documents}, in {len(work['snapshots'])} snapshots and {len(work['sessions'])} sessions"


def _document_rows(reader: Client, contents: _Contents) -> Iterator[JsonObject]:
    rows = listed(
        reader, "documents_export", "documents", lambda page, _: {"after": page["documents"][-1]["path"]}, after=""
    )
    # The next rows and contents are read while these are written.
    for some, pieces in ahead(_steps(rows, contents)):
        contents.write(pieces)
        for row in some:
            if (file := contents.written(row["hash"])) is not None:
                yield {**row, "file": file}


def _steps(rows: Iterable[JsonObject], contents: _Contents) -> Iterator[tuple[list[JsonObject], dict[str, JsonObject]]]:
    """Yield contents, and after those of some rows, the rows."""
    for some in batched(rows, DOCUMENTS):
        for pieces in contents.read(row["hash"] for row in some):
            yield [], pieces
        yield some, {}


def _listing(reader: Client, contents: _Contents, snapshot: str) -> Iterator[JsonObject]:
    for some in batched(listed(reader, "documents_export_files", "files", by_offset, snapshot_id=snapshot)):
        for pieces in contents.read(one["hash"] for one in some if one["hash"]):
            contents.write(pieces)
        yield from some


class _Contents:
    """The files of contents. Paths are strings, since `pathlib` would take half of the time of an export.

    `read` may run in another thread than `write`: it uses `reader`, `write` uses `client`.
    """

    def __init__(self, reader: Client, client: Client, folder: Path) -> None:
        self._reader = reader
        self._client = client
        self._folder = str(folder)

    def read(self, hashes: Iterable[str]) -> Iterator[dict[str, JsonObject]]:
        """Yield the first pieces of those contents that have no file yet, as many at a time as an answer holds."""
        wanted = [hash_ for hash_ in dict.fromkeys(hashes) if self.written(hash_) is None]
        while wanted:
            # An answer holds contents from the front of the list.
            pieces = named(self._reader, "documents_export_contents", {"hashes": wanted})["contents"]
            yield dict(zip(wanted, pieces, strict=False))
            del wanted[: len(pieces)]

    def write(self, pieces: Mapping[str, JsonObject]) -> None:
        """Write contents. Those that cannot be read are reported and left out."""
        for hash_, piece in pieces.items():
            file = content_file(self._folder, hash_)
            # It may have been requested again before it was written.
            if (out := _created(file)) is not None and (problem := self._write(out, hash_, piece)):
                complain(f"the content {hash_} is left out: {problem}")
                os.unlink(file)

    def written(self, hash_: str) -> str | None:
        """Return the file of a content, relative to the folder; None if there is none."""
        file = content_file(self._folder, hash_)
        return file[len(self._folder) + 1 :] if os.path.exists(file) else None

    def _write(self, out: int, hash_: str, piece: JsonObject) -> str:
        """Write a content, given its first piece; return why it could not be read, or ""."""
        try:
            written = _put(out, 0, piece["data"])
            while 0 < written < piece["size"]:
                params = {"hashes": [hash_], "offset": written}
                (piece,) = named(self._client, "documents_export_contents", params)["contents"]
                if not (more := _put(out, written, piece["data"])):
                    break
                written += more
        finally:
            os.close(out)
        return str(piece["problem"])


def _created(file: str) -> int | None:
    """Create a file, and its folder; return its descriptor, or None if it was there."""
    # Opened by number: a file object makes four more system calls.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            return os.open(file, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(file))
            return os.open(file, flags, 0o666)
    except FileExistsError:
        return None


def _put(out: int, at: int, data: bytes | str) -> int:
    """Write data that may be base64 at an offset; return its length."""
    data = base64.b64decode(data) if isinstance(data, str) else data
    done = 0
    while done < len(data):
        done += os.pwrite(out, memoryview(data)[done:], at + done)
    return done


# Transcripts


def _transcripts(steps: Steps, client: Client, folder: Path) -> str:
    turns = 0
    folder.mkdir()
    found = listed(client, "transcript_export", "turns", by_next, after=0)
    for some in batched(steps.counted(found, "turns")):
        said: dict[Path, list[str]] = {}
        for one in some:
            said.setdefault(folder / _conversation(one["root"], one["began"]), []).append(line(one["turn"]))
        for file, new in said.items():
            file.parent.mkdir(exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.writelines(new)
        turns += len(some)
    barred: list[str] = []
    write(folder / "prompts.jsonl", _prompts(client, barred))
    write(folder / "barred.jsonl", barred)
    return f"{turns} turns in {sum(1 for _ in folder.glob('*/*.jsonl'))} conversations"


def _conversation(root: str, began: float) -> Path:
    """Return a path that sorts by time, so that an import keeps the order."""
    try:
        at = time.gmtime(began)
        return Path(time.strftime("%Y-%m", at), f"{time.strftime('%Y%m%dT%H%M%SZ', at)}-{root}.jsonl")
    except (OverflowError, ValueError, OSError):
        return Path("undated", f"{root}.jsonl")


def _prompts(client: Client, barred: list[str]) -> Iterator[str]:
    after = ""
    while True:
        page = named(client, "transcript_export_prompts", {"after": after})
        barred += page["barred"]
        yield from page["prompts"]
        after = page["next"]
        if not after:
            return


# Sets, queries, sources and plans


def _files(client: Client, folder: Path) -> str:
    sets = set_names(client)
    entries = write(folder / "entries.jsonl", (each for name in sets for each in _entries(client, name)))
    counts = [f"{write(folder / 'sets.jsonl', (_set(client, name) for name in sets))} sets with {entries} entries"]
    for name, (operation, key, fields) in FILE_PARTS.items():
        items = named(client, operation, {})[key]
        made = ({field: item[field] for field in fields if item.get(field) is not None} for item in items)
        counts.append(f"{write(folder / f'{name}.jsonl', made)} {name}")
    write(folder / "runs.jsonl", listed(client, "files_export_runs", "runs", by_next, after=0))
    if trash := named(client, "trash_list", {"limit": 1}).get("total_count"):
        complain(f"{trash} items in the trash are not exported: `linckia call trash_restore` restores them")
    return ", ".join(counts)


def set_names(client: Client) -> list[str]:
    """Return the names of all resource sets (`sets_list` returns only as many as fit)."""
    return [one["name"] for one in listed(client, "files_sets", "resource_sets", by_offset, offset=0)]


def _set(client: Client, name: str) -> JsonObject:
    found = named(client, "sets_get", {"name": name})
    return {"name": name, "description": found["description"], "children": found["children"]}


def _entries(client: Client, name: str) -> Iterator[JsonObject]:
    given = {"name": name, "include_entries": True, "limit": 1000}
    for entry in listed(client, "sets_get", "entries", by_offset, **given):
        yield {"set": name, "path": entry["path"]}


# Collections of clients


def _collections(steps: Steps, client: Client, folder: Path) -> str:
    documents = 0
    collections = named(client, "collections_list", {})["collections"]
    for one in collections:
        if one.get("trouble"):
            complain(f"collection {one['collection']} is left out: {one['trouble']}")
            continue
        rows = steps.counted(_collection(client, one), str(one["collection"]))
        documents += write(folder / f"{one['collection']}.jsonl", rows) - 1
    return f"{documents} documents in {len(collections)} collections"


def _collection(client: Client, one: JsonObject) -> Iterator[JsonObject]:
    yield {"dimensions": one["dimensions"]}
    rows = listed(
        client, "collection_export", "documents", lambda page, _: {"after": page["documents"][-1]["id"]},
        collection=one["collection"], after="",
    )  # fmt: skip
    for document in rows:
        yield {key: value for key, value in document.items() if value not in (None, "", {})}


# What manifests declare


def _simple(exports: Iterable[Export], client: Client, folder: Path) -> str:
    return ", ".join(f"{write(folder / each.file, items(client, each))} {each.items}" for each in exports)


def items(client: Client, export: Export) -> Iterator[JsonObject]:
    """Yield all items in exported form, in the order of the list operation."""
    return listed(
        client, export.lists, export.items, {"next": by_next, "offset": by_offset}[export.follows_by], **export.first
    )


def _described(simple: Mapping[str, tuple[Export, ...]]) -> Iterator[str]:
    for name, exports in simple.items():
        for each in exports:
            text = f"- `{name}/{each.file}`: {each.about}"
            yield textwrap.fill(text, 119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
