"""Where the space goes: maps, the largest entries, duplicates, growth between scans, age and type, free space."""

from __future__ import annotations

import mimetypes
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import apsw
import trio

from proto.errors import InvalidParams
from proto.mcp import Content, Image, Text
from proto.ops.files.space import (
    CompareScans,
    Comparison,
    DiskFree,
    DiskTreemap,
    DuplicateGroups,
    Duplicates,
    FileSystem,
    FileSystems,
    FindDuplicates,
    Growth,
    Share,
    SpaceSummary,
    SpaceSummaryOf,
    TopDirectories,
    TopEntries,
    TopFiles,
)
from services.files import paths, times
from services.files.browse import treemap
from services.files.browse.duplicates import File, Search
from services.files.core import Core
from services.files.index import history
from services.files.index.listing import holds_files, mounts
from services.files.index.tree import Stored, below
from services.files.query.entries import ENOUGH, MAX_BYTES, SELECTED, entry_of, find_indexed, fitting, instant
from services.files.store import schema
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Context, handles

SEQUENTIAL = 4
"""From such a part of the index on, all of it is read in its order."""

MAX_BOXES = 400
"""Of one directory in a map; the rest of it is one rectangle."""

AGES = (
    ("last day", 1), ("last week", 7), ("last 30 days", 30), ("last 90 days", 90), ("last year", 365),
    ("last 2 years", 730), ("last 5 years", 1826),
)  # fmt: skip
"""Names and days; older files come last."""


class Space:
    """The operations of `proto.ops.files.space`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def _folder(self, given: str) -> tuple[str, Stored]:
        path, entry = await self._core.database.read(lambda db: find_indexed(db, given, follow=True))
        if entry.kind != schema.DIRECTORY:
            raise InvalidParams(f"`path`: {paths.shown(path)} is not a directory", field="path")
        return path, entry

    @handles(DiskTreemap)
    async def disk_treemap(self, params: DiskTreemap, ctx: Context) -> Content:
        path, entry = await self._folder(params.path)
        column = "size" if params.measure == "apparent" else "disk"

        def query(db: apsw.Connection) -> list[treemap.Box]:
            top = treemap.Item(path, entry.size if column == "size" else entry.disk, True, "", entry.id)
            return treemap.draw(top, lambda id_: _largest(db, id_, column), params.width, params.height, params.depth)

        boxes = await self._core.database.read(query)
        words = f"{treemap.label(boxes[0].item)}: the largest in it are " + (
            ", ".join(treemap.label(box.item) for box in [box for box in boxes if box.level == 1][:10]) or "none"
        )
        if params.format == "svg":
            drawn = await trio.to_thread.run_sync(treemap.svg, boxes, params.width, params.height)
            image = Image(data=drawn.encode(), mime_type="image/svg+xml")
        else:
            data = await trio.to_thread.run_sync(treemap.png, boxes, params.width, params.height)
            image = Image(data=data, mime_type="image/png")
        return Content(content=[image, Text(text=words)])

    async def _top(
        self,
        path: str,
        conditions: str,
        bindings: Sequence[object],
        params: TopFiles | TopDirectories,
        total: int | None,
    ) -> TopEntries:
        """`total`: how many there are, where that is known without counting."""

        def query(db: apsw.Connection) -> TopEntries:
            from_ = f"node n JOIN folder f ON f.id = n.{'id' if isinstance(params, TopDirectories) else 'parent'}"
            if total is not None and total * SEQUENTIAL > fetch_value(db, "SELECT max(id) FROM entry"):
                # In the order of the rows: twice as fast as folder by folder.
                from_ = from_.replace(" JOIN ", " CROSS JOIN ")
            by = "size" if params.measure == "apparent" else "disk"
            rows = db.execute(
                f"SELECT {SELECTED} FROM {from_} WHERE {conditions} ORDER BY n.{by} DESC, n.path LIMIT ? OFFSET ?",
                (*bindings, min(params.limit, ENOUGH), params.offset),
            )
            found, cut = fitting(map(entry_of, rows))
            end = params.offset + len(found)
            count = total
            if count is None:
                count = int(fetch_value(db, f"SELECT count(*) FROM {from_} WHERE {conditions}", bindings))
            summary = (
                f"These are {len(found)} of {count}, as many as fit into {MAX_BYTES} bytes. Go on with offset={end}."
            )
            return TopEntries(
                path=path, entries=found, total=count, has_more=end < count, summary=summary if cut else None
            )

        return await self._core.database.read(query)

    @handles(TopFiles)
    async def top_files(self, params: TopFiles, ctx: Context) -> TopEntries:
        path, entry = await self._folder(params.path)
        inside = below(paths.as_folder(path))
        return await self._top(path, "n.kind = 0 AND f.path >= ? AND f.path < ?", inside, params, entry.files)

    @handles(TopDirectories)
    async def top_directories(self, params: TopDirectories, ctx: Context) -> TopEntries:
        path, entry = await self._folder(params.path)
        conditions = "n.kind = 1 AND f.path >= ? AND f.path < ? AND n.id <> ?"
        bindings: list[object] = [*below(paths.as_folder(path)), entry.id]
        if params.depth is not None:
            conditions += " AND length(f.path) - length(replace(f.path, '/', '')) <= ?"
            bindings.append(paths.as_folder(path).count("/") + params.depth)
        return await self._top(
            path, conditions, bindings, params, None if params.depth is not None else entry.directories
        )

    @handles(FindDuplicates)
    async def find_duplicates(self, params: FindDuplicates, ctx: Context) -> DuplicateGroups:
        path, _ = await self._folder(params.path)
        candidates = await self._core.database.read(lambda db: _same_size(db, path, params.min_size))
        total = sum(map(len, candidates))

        def go_on(compared: int) -> None:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(ctx.progress, compared, total)

        search = Search(self._core.roots, go_on)
        groups = await trio.to_thread.run_sync(search.groups, candidates)
        found = [
            Duplicates(size=group[0].size, paths=[file.path for file in group], wasted=group[0].size * (len(group) - 1))
            for group in groups
        ]
        page, cut = fitting(found[params.offset : params.offset + params.limit])
        end = params.offset + len(page)
        summary = f"These are {len(page)} of {len(found)} groups, as many as fit. Go on with offset={end}."
        return DuplicateGroups(
            groups=page, total=len(found), wasted=sum(group.wasted for group in found), compared=search.compared,
            unreadable=search.unreadable, has_more=end < len(found), summary=summary if cut else None,
        )  # fmt: skip

    @handles(CompareScans)
    async def compare_scans(self, params: CompareScans, ctx: Context) -> Comparison:
        path, _ = await self._folder(params.path)
        since, until = instant(params.since, "since"), instant(params.until, "until", end=True)
        return await self._core.database.read(lambda db: _compared(db, path, since, until, params))

    @handles(DiskFree)
    async def disk_free(self, params: DiskFree, ctx: Context) -> FileSystems:
        return FileSystems(file_systems=await trio.to_thread.run_sync(_file_systems, self._core.roots.paths))

    @handles(SpaceSummaryOf)
    async def space_summary(self, params: SpaceSummaryOf, ctx: Context) -> SpaceSummary:
        path, entry = await self._folder(params.path)

        def query(db: apsw.Connection) -> SpaceSummary:
            return _summary(path, entry, _by_extension_and_age(db, path, time.time_ns()), params.extensions)

        return await self._core.database.read(query)


def _largest(db: apsw.Connection, folder: int, column: str) -> list[treemap.Item]:
    """What is in a directory, the smallest together, largest first."""
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


def _same_size(db: apsw.Connection, path: str, min_size: int) -> list[list[File]]:
    """Files of one size, each inode by the first of its paths, largest first."""
    inside = below(paths.as_folder(path))
    rows = fetch_all(
        db,
        "WITH f AS (SELECT e.size, e.inode, e.device, min(folder.path || e.name) AS path FROM folder"
        " JOIN entry e ON e.parent = folder.id"
        " WHERE folder.path >= ? AND folder.path < ? AND e.kind = 0 AND e.size >= ?"
        " GROUP BY e.inode, e.device)"
        " SELECT path, size, inode, device FROM f WHERE size IN (SELECT size FROM f GROUP BY size HAVING count(*) > 1)"
        " ORDER BY size DESC, path",
        (*inside, min_size),
    )
    groups: dict[int, list[File]] = defaultdict(list)
    for row in rows:
        file = File(*row)
        groups[file.size].append(file)
    return list(groups.values())


def _compared(db: apsw.Connection, path: str, since: int | None, until: int | None, params: CompareScans) -> Comparison:
    there = history.scans(db, path)
    shown = [times.rfc3339(at) for at in there]
    if not there:
        raise InvalidParams(f"`path`: {paths.shown(path)} was never scanned to its end; `index` scans it", field="path")
    later = there[0] if until is None else next((at for at in there if at <= until), there[-1])
    older = [at for at in there if at < later] or [later]
    start = older[0] if since is None else next((at for at in there if at <= since), there[-1])
    before = history.at_time(db, path, start)
    after = history.now(db, path) if until is None else history.at_time(db, path, later)
    nothing = history.Sizes(0, 0)
    level = paths.as_folder(path).count("/")
    changed = []
    for each in before.keys() | after.keys():
        if each.count("/") - level > params.depth:
            continue
        old, new = before.get(each, nothing), after.get(each, nothing)
        if old != new:
            changed.append(
                Growth(
                    path=each.rstrip("/") or "/", before=old.size, after=new.size, change=new.size - old.size,
                    files_before=old.files, files_after=new.files,
                )
            )  # fmt: skip
    changed.sort(key=lambda growth: (-abs(growth.change), growth.path))
    page, _ = fitting(changed[params.offset : params.offset + params.limit])
    old, new = (sizes.get(paths.as_folder(path), nothing) for sizes in (before, after))
    return Comparison(
        path=path, since=times.rfc3339(start), until="" if until is None else times.rfc3339(later),
        change=new.size - old.size, before=old.size, after=new.size, files_before=old.files, files_after=new.files,
        directories=page, total=len(changed), has_more=params.offset + len(page) < len(changed), scans=shown[:100],
    )  # fmt: skip


def _file_systems(roots: Sequence[str]) -> list[FileSystem]:
    there = [mount for mount in mounts() if holds_files(mount)]
    over = {
        root: max((m.path for m in there if paths.is_within(root, (m.path,))), key=len, default="") for root in roots
    }
    found: dict[str, FileSystem] = {}
    for mount in there:
        if mount.path not in over.values() and not paths.is_within(mount.path, roots):
            continue
        try:
            status = os.statvfs(paths.to_os(mount.path))
        except OSError:
            # Gone since, or not for us to ask.
            continue
        if not status.f_blocks:
            continue
        # The file system mounted last at a path hides the others.
        found[mount.path] = FileSystem(
            path=mount.path, kind=mount.kind, source=mount.source, size=status.f_blocks * status.f_frsize,
            used=(status.f_blocks - status.f_bfree) * status.f_frsize, free=status.f_bavail * status.f_frsize,
            inodes=status.f_files, free_inodes=status.f_favail,
            roots=[root for root in roots if over[root] == mount.path],
        )  # fmt: skip
    return list(found.values())


def _by_extension_and_age(db: apsw.Connection, path: str, now: int) -> list[Row]:
    """Extension, which of `AGES` or none, how many files, how many bytes."""
    ages = "".join(f" WHEN e.mtime >= {now - days * times.DAY_NS} THEN {n}" for n, (_, days) in enumerate(AGES))
    return fetch_all(
        db,
        f"SELECT e.extension, CASE{ages} ELSE {len(AGES)} END, count(*), sum(e.size) FROM folder f"
        " JOIN entry e ON e.parent = f.id WHERE f.path >= ? AND f.path < ? AND e.kind = 0 GROUP BY 1, 2",
        below(paths.as_folder(path)),
    )


def _summary(path: str, entry: Stored, rows: Sequence[Row], extensions: int) -> SpaceSummary:
    names = [*(name for name, _ in AGES), "older"]
    by_age = _shares((names[age], count, size) for _, age, count, size in rows)
    by_extension = _shares((extension, count, size) for extension, _, count, size in rows)
    by_type = _shares((_type_of(extension), count, size) for extension, _, count, size in rows)
    return SpaceSummary(
        path=path, size=entry.size, disk_size=entry.disk, files=entry.files, directories=entry.directories,
        by_age=sorted(by_age, key=lambda share: names.index(share.name)), by_type=by_type,
        by_extension=by_extension[:extensions], more_extensions=max(0, len(by_extension) - extensions),
    )  # fmt: skip


def _shares(rows: Iterable[tuple[str, int, int]]) -> list[Share]:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, count, size in rows:
        found[name][0] += count
        found[name][1] += size
    shares = [Share(name=name, count=count, size=size) for name, (count, size) in found.items()]
    return sorted(shares, key=lambda share: (-share.size, share.name))


def _type_of(extension: str) -> str:
    """The first part of the media type, or `document` for those of text processing."""
    guessed = mimetypes.guess_type(f"x.{extension}")[0] if extension else None
    if guessed is None:
        return "other"
    kind, _, rest = guessed.partition("/")
    if kind == "application":
        words = ("pdf", "word", "document", "presentation", "sheet", "excel", "powerpoint", "rtf", "epub")
        return "document" if any(word in rest for word in words) else "application"
    return kind
