"""`linckia import`: imports an export (see `export`); existing data is kept.

Each step is idempotent and asks which data is missing, so an interrupted import can be resumed by repeating it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kernel.cli.carry.export import FORMAT, content_file, set_names
from kernel.cli.carry.files import BATCH_BYTES, batched, declared, lines, named, opened
from proto.control.client import CallFailed, Client
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, connect, patiently, say
from proto.json_types import JsonObject
from proto.manifest import Export
from proto.ops.kernel import KernelStatusParams
from proto.vocabulary import current_name

INLINE_BYTES = PIECE_BYTES = 1024 * 1024
"""Contents up to this size are sent with their rows; larger ones are sent in pieces of this size."""

_HASH = re.compile("[0-9a-f]{64}")

HEAD_BYTES = 64 * 1024
"""Maximum size of `export.json`."""

LOOSE = "linckia-import/"
"""Path prefix of temporary documents that hold contents until the snapshot that refers to them exists."""


def import_data(arguments: argparse.Namespace) -> int:
    """Import; exit code 1 if something was left out. Raises ControlError, Failed, Usage."""
    source = Path(arguments.source).expanduser().resolve()
    with connect(arguments) as client:
        if arguments.origin is not None:
            from kernel.cli.carry.originals import take_original

            return take_original(client, arguments.origin, source, take_files)
        try:
            with opened(source / "export.json") as file:
                found = json.loads(file.read(HEAD_BYTES))["linckia_export"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise Usage(f"{source} is not a Linckia export (no valid export.json); see --from") from None
        if found != FORMAT:
            raise Failed(f"{source} has format {found}; this version of Linckia reads {FORMAT}")
        left = 0
        parts: dict[str, Callable[[Client, Path], tuple[str, int]]] = {
            "documents": _documents, "transcripts": _transcripts, "files": take_files, "collections": _collections,
            **{name: partial(_simple, exports) for name, exports in declared(client).items()},
        }  # fmt: skip
        for name, take in parts.items():
            if (source / name).is_symlink():
                raise Failed(f"{source / name} cannot be read: it is a link")
            if (source / name).is_dir():
                try:
                    said, missing = take(client, source / name)
                except (KeyError, TypeError, AttributeError) as error:
                    raise Failed(f"{source / name} does not match its README.md: {error!r}") from None
                say(f"{name}: {said}")
                left += missing
        for folder in sorted(each for each in source.iterdir() if each.is_dir() and each.name not in parts):
            complain(f"{folder} is left out: no running service {folder.name!r} can import it")
            left += 1
    return 1 if left else 0


# Documents


def _documents(client: Client, folder: Path) -> tuple[str, int]:
    changed = failed = 0
    for sessions in batched(lines(folder / "sessions.jsonl")):
        changed += named(client, "documents_import", {"sessions": sessions})["changed"]
    rows = ({key: value for key, value in row.items() if key != "file"} for row in lines(folder / "documents.jsonl"))
    found = _rows(client, folder, rows)
    changed, failed = changed + found[0], failed + found[1]
    for snapshot in lines(folder / "snapshots.jsonl"):
        listing = folder / "snapshots" / Path(snapshot.pop("listing")).name
        loose = _rows(client, folder, (_loose(one) for one in lines(listing) if one["hash"]), only_missing=True)
        failed += loose[1]
        offset = 0
        for some in batched(lines(listing), 20_000):
            given = {"snapshot": snapshot, "offset": offset, "files": some}
            changed += named(client, "documents_import", given)["changed"]
            offset += len(some)
        if not offset:
            changed += named(client, "documents_import", {"snapshot": snapshot})["changed"]
    with contextlib.suppress(CallFailed):
        # Deleting fails if no such document exists, which does not matter.
        named(client, "documents_delete", {"name": f"{LOOSE}*"})
    return f"{changed} new rows", failed


def _loose(file: JsonObject) -> JsonObject:
    times = dict.fromkeys(("created_ns", "modified_ns", "indexed_ns"), file["modified_ns"])
    return {"path": LOOSE + file["hash"], "name": file["path"].rpartition("/")[2] or "-", "hash": file["hash"], **times}


def _rows(client: Client, folder: Path, rows: Iterator[JsonObject], *, only_missing: bool = False) -> tuple[int, int]:
    """Store documents with their contents; return how many rows changed and how many contents are missing in the
    export.

    With `only_missing`, store only documents whose contents are not stored yet.
    """
    changed = failed = 0
    for batch in batched(rows):
        for row in batch:
            _check_hash(folder, row["hash"])
        hashes = list(dict.fromkeys(row["hash"] for row in batch))
        missing = set(named(client, "documents_missing", {"hashes": hashes})["hashes"])
        documents: list[JsonObject] = []
        contents: list[str] = []
        held = 0
        for row in batch:
            if row["hash"] in missing:
                missing.discard(row["hash"])
                file = _file(folder, row["hash"])
                if file is None:
                    complain(f"{row['path']} is left out: its content {row['hash']} is not in the export")
                    failed += 1
                    continue
                size = file.stat().st_size
                if size > INLINE_BYTES:
                    _upload(client, file, row)
                else:
                    with opened(file) as content:
                        contents.append(base64.b64encode(content.read(INLINE_BYTES)).decode())
                    held += size
            elif only_missing:
                continue
            documents.append(row)
            if held >= BATCH_BYTES:
                changed += _store(client, documents, contents)
                documents, contents, held = [], [], 0
        changed += _store(client, documents, contents)
    return changed, failed


def _check_hash(folder: Path, hash_: object) -> None:
    """Raise Failed unless it can be a hash: it is part of a path."""
    if not isinstance(hash_, str) or _HASH.fullmatch(hash_) is None:
        raise Failed(f"{folder}: {repr(hash_)[:100]} is not the hash of a content (64 hexadecimal digits)")


def _store(client: Client, documents: list[JsonObject], contents: list[str]) -> int:
    if not documents:
        return 0
    return int(named(client, "documents_import", {"documents": documents, "contents": contents})["changed"])


def _file(folder: Path, hash_: str) -> Path | None:
    found = Path(content_file(str(folder), hash_))
    # A link would lead to files that are not part of the export.
    if any(each.is_symlink() for each in (found.parent.parent, found.parent, found)):
        return None
    if found.is_dir():
        # Earlier exports have a folder for each content.
        found = next(found.iterdir(), found)
    return found if found.is_file() and not found.is_symlink() else None


def _upload(client: Client, file: Path, row: JsonObject) -> None:
    """Upload a large content as a temporary document, until its own documents exist."""
    begun = {"path": LOOSE + row["hash"], "name": row["name"], "mimeType": row.get("mime_type")}
    upload = named(client, "documents_put_begin", begun)["upload_id"]
    offset = 0
    with opened(file) as content:
        while data := content.read(PIECE_BYTES):
            piece = {"upload_id": upload, "offset": offset, "data": base64.b64encode(data).decode()}
            named(client, "documents_put_piece", piece)
            offset += len(data)
    named(client, "documents_put_commit", {"upload_id": upload, "size": offset, "sha256": row["hash"]})


# Transcripts


def _transcripts(client: Client, folder: Path) -> tuple[str, int]:
    changed = 0
    for name in ("barred", "prompts"):
        for some in batched(lines(folder / f"{name}.jsonl"), length=len):
            changed += named(client, "transcript_restore", {name: some})["changed"]
    # Turns of many conversations share a request: a commit for each conversation would take hours.
    said = (turn for file in sorted(folder.glob("*/*.jsonl")) for turn in lines(file))
    for turns in batched(said, length=lambda turn: len(str(turn))):
        changed += named(client, "transcript_restore", {"turns": turns})["changed"]
    return f"{changed} new rows", 0


# Sets, queries, sources and plans


def take_files(client: Client, folder: Path) -> tuple[str, int]:
    """Import the `.jsonl` files in a folder; return a summary in words, and how many items were left out."""
    sets = list(lines(folder / "sets.jsonl"))
    there = set(set_names(client))
    made, left = _create(client, "resource-set", there, [{**one, "children": None} for one in sets])
    for one in sets:
        for child in one.get("children") or ():
            named(client, "sets_add_child", {"parent": one["name"], "child": child})
    for name in ("query", "source", "plan"):
        plural = "queries" if name == "query" else f"{name}s"
        there = {one["name"] for one in named(client, current_name(f"{name}-list"), {})[plural]}
        found = _create(client, name, there, list(lines(folder / f"{plural}.jsonl")))
        made, left = made + found[0], left + found[1]
    for runs in batched(lines(folder / "runs.jsonl")):
        named(client, "files_import_runs", {"runs": runs})
    added = missing = 0
    for entries in batched(lines(folder / "entries.jsonl"), 5000):
        for name in dict.fromkeys(entry["set"] for entry in entries):
            found = _add(client, name, [entry["path"] for entry in entries if entry["set"] == name])
            added, missing = added + found[0], missing + found[1]
    if missing:
        complain(f"{missing} entries of resource sets are left out: they do not exist below a root on this machine")
    return f"{made} were created, {added} entries were added to sets", missing + left


def _create(client: Client, kind: str, there: set[str], items: list[JsonObject]) -> tuple[int, int]:
    """Create items whose names are free, plans without running them; return how many were created and left out."""
    new = [one for one in items if one["name"] not in there]
    made = 0
    for one in new:
        given = {key: value for key, value in one.items() if value is not None and key != "status"}
        try:
            client.call_named(current_name(f"{kind}-create"), given)
        except CallFailed as error:
            if error.failure.get("kind") not in ("invalid_params", "operation", "denied"):
                raise
            complain(f"{kind} {one['name']!r} is left out: {error}")
            continue
        made += 1
        if one.get("status", "active") != "active":
            client.call_named("plans_update", {"name": one["name"], "status": one["status"]})
    return made, len(new) - made


def _add(client: Client, name: str, paths: list[str]) -> tuple[int, int]:
    """Add entries to a set, indexing them first if needed; return how many were added and how many do not exist."""
    if (added := _modify(client, name, paths)) is not None:
        return added, 0
    for root in patiently(client, KernelStatusParams()).roots:
        below = [path for path in paths if path == root or path.startswith(root.rstrip("/") + "/")]
        if below:
            common = os.path.commonpath(below)
            folder = common if os.path.isdir(common) else os.path.dirname(common)
            try:
                named(client, "index", {"root": folder, "async": False, "force": True})
            except CallFailed as error:
                # If the folder does not exist, its entries are reported as missing.
                complain(error)
    return _bisected(client, name, paths)


def _bisected(client: Client, name: str, paths: list[str]) -> tuple[int, int]:
    if (added := _modify(client, name, paths)) is not None:
        return added, 0
    if len(paths) == 1:
        return 0, 1
    half = len(paths) // 2
    first, second = _bisected(client, name, paths[:half]), _bisected(client, name, paths[half:])
    return first[0] + second[0], first[1] + second[1]


def _modify(client: Client, name: str, paths: list[str]) -> int | None:
    """Add entries; return how many were added, or None if one of them cannot be."""
    given = {"name": name, "operation": "add", "paths": paths}
    try:
        return int(named(client, "sets_modify", given)["changed"])
    except CallFailed as error:
        if error.failure.get("kind") != "invalid_params":
            raise
    return None


# Collections of clients


def _collections(client: Client, folder: Path) -> tuple[str, int]:
    """Import missing documents; return a summary in words, and how many collections are incomplete."""
    made = left = 0
    for file in sorted(folder.glob("*.jsonl")):
        rows = lines(file)
        dimensions = next(rows, {"dimensions": None})["dimensions"]
        try:
            given = {"collection": file.stem, **({"dimensions": dimensions} if dimensions else {})}
            named(client, "collections_create", given)
            for some in batched(rows, length=lambda row: len(str(row))):
                made += _put(client, file.stem, some)
        except CallFailed as error:
            # The collection has another shape, or the quota is reached. Existing data is kept.
            complain(f"collection {file.stem} was not imported completely: {error}")
            left += 1
    return f"{made} documents were added to collections", left


def _put(client: Client, name: str, rows: list[JsonObject]) -> int:
    asked = {"collection": name, "ids": [row["id"] for row in rows], "limit": len(rows)}
    there = {each["id"] for each in named(client, "collections_documents", asked)["documents"]}
    new = [row for row in rows if row["id"] not in there]
    if new:
        named(client, "collections_upsert", {"collection": name, "documents": new})
    return len(new)


# What manifests declare


def _simple(exports: tuple[Export, ...], client: Client, folder: Path) -> tuple[str, int]:
    said = []
    for each in exports:
        changed = 0
        for some in batched(lines(folder / each.file), length=lambda row: len(str(row))):
            changed += named(client, each.takes, {each.items: some})["changed"]
        said.append(f"{changed} new {each.items}")
    return ", ".join(said), 0
