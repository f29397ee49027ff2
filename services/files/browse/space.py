"""Disk usage: maps, the largest entries, duplicates, growth between scans, age and type, free space."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import apsw
import msgspec
import trio

from proto.errors import InvalidParams
from proto.mcp import Content, Image, Text
from services.files import paths
from services.files.browse import treemap
from services.files.changes.disk import Refused, open_at, opened
from services.files.core import Family, reads
from services.files.index.listing import holds_files, mounts
from services.files.index.tree import Sizes, StoredEntry, below, scans_of, sizes_at, sizes_now, wholes
from services.files.operations import space as ops
from services.files.query.columns import LARGE, Columns
from services.files.query.entries import (
    ENOUGH,
    MAX_BYTES,
    SELECTED,
    Order,
    Select,
    entry_of,
    find_indexed,
    first_of,
    fitting,
    is_kind,
)
from services.files.query.matching import Compare, Condition
from services.files.store import schema
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Context, handles
from services.shared import times
from services.shared.times import instant

SEQUENTIAL = 4
"""If at least one in this many entries is needed, the whole index is read sequentially."""

SUMMED = frozenset({"above", "kind", "size", "mtime", "extension"})
"""Columns in memory that a summary needs."""

MAX_BOXES = 400
"""Most boxes per directory in a map; the remaining entries share one rectangle."""

AGES = (
    ("last day", 1), ("last week", 7), ("last 30 days", 30), ("last 90 days", 90), ("last year", 365),
    ("last 2 years", 730), ("last 5 years", 1826),
)  # fmt: skip
"""Names and days; older files come last."""


class SpaceTools(Family):
    """The operations of `services.files.operations.space`."""

    @handles(ops.DiskTreemap)
    async def disk_treemap(self, params: ops.DiskTreemap, ctx: Context) -> Content:
        column = "size" if params.measure == "apparent" else "disk"

        def query(db: apsw.Connection) -> list[treemap.Box]:
            path, entry = _folder(db, self._core.roots, params.path)
            top = treemap.Item(path, entry.size if column == "size" else entry.disk, True, "", entry.id)
            return treemap.draw(top, lambda id_: _largest(db, id_, column), params.width, params.height, params.depth)

        boxes = await self._core.database.read(query)
        words = f"{treemap.label(boxes[0].item)}; largest entries: " + (
            ", ".join(treemap.label(box.item) for box in [box for box in boxes if box.level == 1][:10]) or "none"
        )
        if params.format == "svg":
            drawn = await trio.to_thread.run_sync(treemap.svg, boxes, params.width, params.height)
            image = Image(data=drawn.encode(), mime_type="image/svg+xml")
        else:
            data = await trio.to_thread.run_sync(treemap.png, boxes, params.width, params.height)
            image = Image(data=data, mime_type="image/png")
        return Content(content=[image, Text(text=words)])

    @reads(ops.TopFiles)
    def top_files(self, db: apsw.Connection, params: ops.TopFiles) -> ops.TopEntries:
        path, entry = _folder(db, self._core.roots, params.path)
        bounds = below(paths.as_folder(path))
        total = None if wholes(db, path)[1] else entry.files
        if entry.files >= LARGE:
            inside = Condition("n.folder >= ? AND n.folder < ?", bounds, (Compare("under", "=", entry.id),))
            order = Order("size" if params.measure == "apparent" else "disk_size", descending=True)
            select = Select([is_kind(schema.FILE), inside])
            found = first_of(self._core.columns, db, select, order, limit=params.limit, offset=params.offset)
            if found is not None:
                return _listed(path, found[2], found[0] if total is None else total, params.offset)
        from_ = f"node n {_joined(db, entry.files)} folder f ON f.id = n.parent"
        return _top(db, path, from_, "n.kind = 0 AND f.path >= ? AND f.path < ?", bounds, params, total)

    @reads(ops.TopDirectories)
    def top_directories(self, db: apsw.Connection, params: ops.TopDirectories) -> ops.TopEntries:
        path, entry = _folder(db, self._core.roots, params.path)
        conditions = "n.kind = 1 AND f.path >= ? AND f.path < ? AND n.id <> ?"
        bindings: list[object] = [*below(paths.as_folder(path)), entry.id]
        total = None if wholes(db, path)[1] else entry.directories
        if params.depth is not None:
            conditions += " AND length(f.path) - length(replace(f.path, '/', '')) <= ?"
            bindings.append(paths.as_folder(path).count("/") + params.depth)
            total = None
        joined = "JOIN" if params.depth is not None else _joined(db, entry.directories)
        return _top(db, path, f"node n {joined} folder f ON f.id = n.id", conditions, bindings, params, total)

    @handles(ops.FindDuplicates)
    async def find_duplicates(self, params: ops.FindDuplicates, ctx: Context) -> ops.DuplicateGroups:
        candidates = await self._core.database.read(lambda db: _same_size(db, self._core.roots, params))
        total = sum(map(len, candidates))

        def go_on(compared: int) -> None:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(ctx.progress, compared, total)

        search = Search(self._core.roots, go_on)
        groups = await trio.to_thread.run_sync(search.groups, candidates)
        found = [
            ops.Duplicates(
                size=group[0].size, paths=[file.path for file in group], wasted=group[0].size * (len(group) - 1)
            )
            for group in groups
        ]
        page, cut = fitting(found[params.offset : params.offset + params.limit])
        end = params.offset + len(page)
        summary = f"Truncated to {len(page)} of {len(found)} groups. Continue with offset={end}."
        return ops.DuplicateGroups(
            groups=page, total=len(found), wasted=sum(group.wasted for group in found), compared=search.compared,
            unreadable=search.unreadable, has_more=end < len(found), summary=summary if cut else None,
        )  # fmt: skip

    @reads(ops.CompareScans)
    def compare_scans(self, db: apsw.Connection, params: ops.CompareScans) -> ops.Comparison:
        since, until = instant(params.since, "since"), instant(params.until, "until", end=True)
        return _compared(db, self._core.roots, since, until, params)

    @handles(ops.DiskFree)
    async def disk_free(self, params: ops.DiskFree, ctx: Context) -> ops.FileSystems:
        return ops.FileSystems(file_systems=await trio.to_thread.run_sync(_file_systems, self._core.roots.reachable))

    @reads(ops.SpaceSummaryOf)
    def space_summary(self, db: apsw.Connection, params: ops.SpaceSummaryOf) -> ops.SpaceSummary:
        path, entry = _folder(db, self._core.roots, params.path)
        return _summary(
            path, entry, _by_extension_and_age(self._core.columns, db, path, entry, time.time_ns()), params.extensions
        )


def _folder(db: apsw.Connection, roots: paths.FileRoots, given: str) -> tuple[str, StoredEntry]:
    path, entry = find_indexed(db, roots, given, follow=True)
    if entry.kind != schema.DIRECTORY:
        raise InvalidParams(f"`path`: {paths.shown(path)} is not a directory", field="path")
    return path, entry


def _top(
    db: apsw.Connection, path: str, from_: str, conditions: str, bindings: Sequence[object],
    params: ops.TopFiles | ops.TopDirectories, total: int | None,
) -> ops.TopEntries:  # fmt: skip
    """Return the largest entries. `total` is their number, if it is known without counting."""
    by = "size" if params.measure == "apparent" else "disk"
    rows = db.execute(
        f"SELECT {SELECTED} FROM {from_} WHERE {conditions} ORDER BY n.{by} DESC, n.path LIMIT ? OFFSET ?",
        (*bindings, min(params.limit, ENOUGH), params.offset),
    )
    count = total
    if count is None:
        count = int(fetch_value(db, f"SELECT count(*) FROM {from_} WHERE {conditions}", bindings))
    return _listed(path, rows, count, params.offset)


def _listed(path: str, rows: Iterable[Row], count: int, offset: int) -> ops.TopEntries:
    found, cut = fitting(map(entry_of, rows))
    end = offset + len(found)
    summary = f"Truncated to {len(found)} of {count} to fit into {MAX_BYTES} bytes. Continue with offset={end}."
    return ops.TopEntries(path=path, entries=found, total=count, has_more=end < count, summary=summary if cut else None)


def _joined(db: apsw.Connection, total: int) -> str:
    """Choose how to join entries to their folders: if most of the index is needed, in row order, which is twice as fast
    as folder by folder."""
    return "CROSS JOIN" if total * SEQUENTIAL > fetch_value(db, "SELECT max(id) FROM entry") else "JOIN"


def _largest(db: apsw.Connection, folder: int, column: str) -> list[treemap.Item]:
    """Return the entries of a directory, largest first; the smallest ones are combined."""
    rows = fetch_all(
        db,
        f"SELECT name, {column}, kind, extension, id FROM entry WHERE parent = ? AND scanned > 0 AND {column} > 0"
        f" ORDER BY {column} DESC, name LIMIT ?",
        (folder, MAX_BOXES),
    )
    items = [treemap.Item(name, size, kind == schema.DIRECTORY, ext, id_) for name, size, kind, ext, id_ in rows]
    if len(items) == MAX_BOXES:
        every = fetch_value(db, f"SELECT sum({column}) FROM entry WHERE parent = ? AND scanned > 0", (folder,))
        rest = every - sum(item.size for item in items)
        if rest > 0:
            items = sorted([*items, treemap.Item("…", rest, False, "", 0)], key=lambda item: -item.size)
    return items


def _same_size(db: apsw.Connection, roots: paths.FileRoots, params: ops.FindDuplicates) -> list[list[Candidate]]:
    """Return groups of files of equal size, largest first; each inode appears once, with the first of its paths."""
    path, _ = _folder(db, roots, params.path)
    inside = below(paths.as_folder(path))
    rows = fetch_all(
        db,
        "WITH f AS (SELECT e.size, e.inode, e.device, min(folder.path || e.name) AS path FROM folder"
        " JOIN entry e ON e.parent = folder.id"
        " WHERE folder.path >= ? AND folder.path < ? AND e.kind = 0 AND e.size >= ? AND e.scanned > 0"
        " GROUP BY e.inode, e.device)"
        " SELECT path, size, inode, device FROM f WHERE size IN (SELECT size FROM f GROUP BY size HAVING count(*) > 1)"
        " ORDER BY size DESC, path",
        (*inside, params.min_size),
    )
    groups: dict[int, list[Candidate]] = defaultdict(list)
    for row in rows:
        file = Candidate(*row)
        groups[file.size].append(file)
    return list(groups.values())


def _compared(
    db: apsw.Connection, roots: paths.FileRoots, since: int | None, until: int | None, params: ops.CompareScans
) -> ops.Comparison:
    path, _ = _folder(db, roots, params.path)
    there = scans_of(db, path)
    shown = [times.rfc3339(at) for at in there]
    if not there:
        raise InvalidParams(
            f"`path`: {paths.shown(path)} has no completed scan; call `files_index` first", field="path"
        )
    later = there[0] if until is None else next((at for at in there if at <= until), there[-1])
    older = [at for at in there if at < later] or [later]
    start = older[0] if since is None else next((at for at in there if at <= since), there[-1])
    before = sizes_at(db, path, start)
    after = sizes_now(db, path) if until is None else sizes_at(db, path, later)
    nothing = Sizes(0, 0)
    level = paths.as_folder(path).count("/")
    inside = set(wholes(db, path)[1])
    changed = []
    for each in before.keys() | after.keys():
        old, new = before.get(each, nothing), after.get(each, nothing)
        if old == new or each.count("/") - level > params.depth:
            continue
        if not any(f"{above}/" in inside for above in paths.ancestors(each[:-1])):
            changed.append(
                ops.Growth(
                    path=each.rstrip("/") or "/", before=old.size, after=new.size, change=new.size - old.size,
                    files_before=old.files, files_after=new.files,
                )
            )  # fmt: skip
    changed.sort(key=lambda growth: (-abs(growth.change), growth.path))
    page, _ = fitting(changed[params.offset : params.offset + params.limit])
    old, new = (sizes.get(paths.as_folder(path), nothing) for sizes in (before, after))
    return ops.Comparison(
        path=path, since=times.rfc3339(start), until="" if until is None else times.rfc3339(later),
        change=new.size - old.size, before=old.size, after=new.size, files_before=old.files, files_after=new.files,
        directories=page, total=len(changed), has_more=params.offset + len(page) < len(changed), scans=shown[:100],
    )  # fmt: skip


def _file_systems(roots: Sequence[str]) -> list[ops.FileSystem]:
    there = [mount for mount in mounts() if holds_files(mount)]
    over = {
        root: max((m.path for m in there if paths.is_within(root, (m.path,))), key=len, default="") for root in roots
    }
    found: dict[str, ops.FileSystem] = {}
    for mount in there:
        if mount.path not in over.values() and not paths.is_within(mount.path, roots):
            continue
        try:
            status = os.statvfs(paths.to_os(mount.path))
        except OSError:
            # It was unmounted, or access is denied.
            continue
        if not status.f_blocks:
            continue
        # The file system mounted last at a path hides the others.
        found[mount.path] = ops.FileSystem(
            path=mount.path, kind=mount.kind, source=mount.source, size=status.f_blocks * status.f_frsize,
            used=(status.f_blocks - status.f_bfree) * status.f_frsize, free=status.f_bavail * status.f_frsize,
            inodes=status.f_files, free_inodes=status.f_favail,
            roots=[root for root in roots if over[root] == mount.path],
        )  # fmt: skip
    return list(found.values())


def _by_extension_and_age(columns: Columns, db: apsw.Connection, path: str, entry: StoredEntry, now: int) -> list[Row]:
    """Count files and bytes by extension and age; ages are positions in `AGES`, or its length."""
    since = [now - days * times.DAY_NS for _, days in AGES]
    cases = "".join(f" WHEN e.mtime >= {at} THEN {n}" for n, at in enumerate(since))
    grouped = f"SELECT e.extension, CASE{cases} ELSE {len(AGES)} END, count(*), sum(e.size) FROM"
    tail = "folder f ON e.parent = f.id WHERE f.path >= ? AND f.path < ? AND e.kind = 0 GROUP BY 1, 2"
    inside = below(paths.as_folder(path))
    view = columns.view(db, SUMMED) if entry.files >= LARGE else None
    rows = None if view is None else view.by_extension_and_age(entry.id, since)
    if view is None or rows is None:
        return fetch_all(db, f"{grouped} entry e {_joined(db, entry.files)} {tail}", inside)
    changed = msgspec.json.encode(view.changed).decode()
    among = f"{grouped} json_each(?) c CROSS JOIN entry e ON e.id = c.value CROSS JOIN {tail}"
    return rows + fetch_all(db, among, (changed, *inside))


def _summary(path: str, entry: StoredEntry, rows: Sequence[Row], extensions: int) -> ops.SpaceSummary:
    names = [*(name for name, _ in AGES), "older"]
    by_age = _shares((names[age], count, size) for _, age, count, size in rows)
    by_extension = _shares((extension, count, size) for extension, _, count, size in rows)
    by_type = _shares((_type_of(extension), count, size) for extension, _, count, size in rows)
    return ops.SpaceSummary(
        path=path, size=entry.size, disk_size=entry.disk, files=entry.files, directories=entry.directories,
        by_age=sorted(by_age, key=lambda share: names.index(share.name)), by_type=by_type,
        by_extension=by_extension[:extensions], more_extensions=max(0, len(by_extension) - extensions),
    )  # fmt: skip


def _shares(rows: Iterable[tuple[str, int, int]]) -> list[ops.Share]:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, count, size in rows:
        found[name][0] += count
        found[name][1] += size
    shares = [ops.Share(name=name, count=count, size=size) for name, (count, size) in found.items()]
    return sorted(shares, key=lambda share: (-share.size, share.name))


def _type_of(extension: str) -> str:
    """Return the first part of the media type, or `document` for office formats."""
    guessed = mimetypes.guess_type(f"x.{extension}")[0] if extension else None
    if guessed is None:
        return "other"
    kind, _, rest = guessed.partition("/")
    if kind == "application":
        words = ("pdf", "word", "document", "presentation", "sheet", "excel", "powerpoint", "rtf", "epub")
        return "document" if any(word in rest for word in words) else "application"
    return kind


# Files with the same content. Candidates are grouped by indexed size, then by both ends, then by a hash of all content.
# Several names of one inode count as one file. Files that changed since they were scanned, or cannot be read, are
# counted but left out.

END_BYTES = 16_384
"""Bytes read at each end for the first comparison."""

CHUNK = 1 << 20


class Candidate(NamedTuple):
    """A candidate, as indexed."""

    path: str
    size: int
    inode: int
    device: int


class Search:
    """A search for duplicates; blocks."""

    def __init__(self, roots: paths.FileRoots, go_on: Callable[[int], None]) -> None:
        """`go_on` is called with the number of files read so far, and may raise to stop."""
        self._roots = roots
        self._go_on = go_on
        self.compared = 0
        self.unreadable = 0

    def groups(self, same_size: Iterable[list[Candidate]]) -> list[list[Candidate]]:
        """Return groups of files with equal content, the most wasteful groups first, each ordered by path."""
        found = []
        for files in same_size:
            size = files[0].size
            for ends in self._split(files, END_BYTES):
                # A file no longer than both ends has been read completely.
                found += [ends] if size <= 2 * END_BYTES else self._split(ends, None)
        found = [sorted(group) for group in found]
        return sorted(found, key=lambda group: (-group[0].size * (len(group) - 1), group[0].path))

    def _split(self, files: list[Candidate], ends: int | None) -> list[list[Candidate]]:
        alike: dict[bytes, list[Candidate]] = defaultdict(list)
        for file in files:
            if ends is not None:
                self.compared += 1
            self._go_on(self.compared)
            digest = self._digest(file, ends)
            if digest is not None:
                alike[digest].append(file)
        return [group for group in alike.values() if len(group) > 1]

    def _digest(self, file: Candidate, ends: int | None) -> bytes | None:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with (
                opened(self._roots, file.path, "path") as place,
                open_at(place.name, flags, place.folder) as descriptor,
            ):
                status = os.fstat(descriptor)
                digest = self._of(descriptor, file.size, ends)
                after = os.fstat(descriptor)
        except (Refused, OSError):
            self.unreadable += 1
            return None
        same = (status.st_size, status.st_ino, status.st_mtime_ns) == (file.size, file.inode, after.st_mtime_ns)
        if not same:
            self.unreadable += 1
        return digest if same else None

    def _of(self, descriptor: int, size: int, ends: int | None) -> bytes:
        hashed = hashlib.blake2b(digest_size=32)
        if ends is not None and size > 2 * ends:
            hashed.update(os.pread(descriptor, ends, 0))
            hashed.update(os.pread(descriptor, ends, size - ends))
            return hashed.digest()
        while chunk := os.read(descriptor, CHUNK):
            hashed.update(chunk)
            self._go_on(self.compared)
        return hashed.digest()
