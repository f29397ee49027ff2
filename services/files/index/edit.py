"""Changes to the stored tree: once an `Edit` is finished, every directory's sums are correct.

An `Edit` belongs to one transaction. It records how each change affects the sums of its directory, and `finish` applies
that to every directory above. Files with several links are handled separately: before the first change to an inode, the
directories that count it are recorded, and at the end they are counted again. So each directory counts an inode below
it once, whichever of its names came or went.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apsw

from services.files import paths
from services.files.index.listing import MAX_INT, DiskEntry, Listing, look
from services.files.index.tree import StoredEntry, below, find, find_scanned, folder_path, rows_below, set_rows
from services.files.store import schema
from services.files.store.sql import Row, fetch_all, fetch_one, fetch_value


class Edit:
    """Changes to the tree within one transaction; sums are incorrect before `finish`."""

    def __init__(self, db: apsw.Connection, now: int) -> None:
        """`now` is the time in nanoseconds that is stored in `scanned`."""
        self._db = db
        self._now = now
        self._next_id: int = fetch_value(db, "SELECT max(id) FROM entry") + 1
        self._inserts: list[Sequence[int | str]] = []
        self._parents: dict[int, int] = {}
        """Cached parents of directories."""
        self._folders: dict[int, list[int | str | bytes | None]] = {}
        self._shown: dict[int, int] = {}
        """Cached values of `folder.rows`."""
        self._deltas: dict[int, list[int]] = {}
        self._groups: dict[tuple[int, int], None] = {}
        self._unlisted: set[int] = set()
        """Directories whose fingerprints are stale because single entries changed."""
        self.changed = False
        """True if anything differed from the stored state."""

    # Directories

    def reach(self, path: str) -> int:
        """Return the id of a directory, creating it and its parents if they are missing.

        A directory created below a scanned one counts as scanned too, with the attributes of the directory on disk.
        """
        found = find(self._db, path)
        if found is not None and found.kind == schema.DIRECTORY:
            return found.id
        if found is not None:
            self.remove(found)
        folder, name = paths.split(path)
        above = paths.of_folder(folder)
        parent = self.reach(above)
        there = look(path) if find_scanned(self._db, above) is not None else None
        if there is not None and there.kind == schema.DIRECTORY:
            self._unlisted.add(parent)
            id_ = self._insert(parent, folder, there, {})
        else:
            id_ = self._next_id
            self._next_id += 1
            self._inserts.append((id_, parent, name, schema.DIRECTORY, 0, 0, 0, 0, 0, 0, 0, 0, 1, "", 0))
            self._new_folder(id_, parent, name, paths.as_folder(path), 0)
        self.flush()
        return id_

    def path_of(self, id_: int) -> str | None:
        """Return the path of a directory with its slash; None if it is gone."""
        pending = self._folders.get(id_)
        return str(pending[2]) if pending is not None else folder_path(self._db, id_)

    def put_folder(self, id_: int, path: str, listing: Listing, *, fresh: bool) -> dict[str, int]:
        """Make the directory `id_` contain exactly what was listed; entries that could not be examined stay.

        Args:
            path: the directory's path, with its slash.
            fresh: none of its entries are stored yet.

        Returns:
            The ids of newly stored subdirectories, by name.
        """
        new: dict[str, int] = {}
        if fresh:
            self._fill(id_, path, listing, new)
        else:
            rows = fetch_all(self._db, "SELECT * FROM entry WHERE parent = ?", (id_,))
            stored = {row[2]: StoredEntry(*row) for row in rows}
            for found in listing.found():
                self._put(id_, path, found, stored.pop(found.name, None), new)
            for name in listing.unknown:
                stored.pop(name, None)
            for gone in stored.values():
                self.remove(gone)
        problem = None
        if unknown := listing.unknown:
            problem = f"{len(unknown)} entries could not be examined, for example {unknown[0]!r}"
        own_files, own_size, inside = listing.totals
        # With unknown entries, a fingerprint would wrongly say that all are known.
        self._set_folder(id_, None if unknown else listing.fingerprint, problem, inside, own_files, own_size)
        return new

    def put(self, parent: int, path: str, found: DiskEntry) -> int:
        """Store a found entry in the directory `parent` (whose `path` ends in a slash). Returns its id."""
        row = fetch_one(self._db, "SELECT * FROM entry WHERE parent = ? AND name = ?", (parent, found.name))
        before = None if row is None else StoredEntry(*row)
        if before is None or not _is_as_stored(found, before):
            self._unlisted.add(parent)
        return self._put(parent, path, found, before, {})

    def set_problem(self, id_: int, problem: str) -> None:
        """Store why a directory cannot be read; its stored entries stay."""
        self._set_folder(id_, None, problem, 0, 0, 0)

    def _set_folder(self, id_: int, *known: bytes | str | int | None) -> None:
        """`known`: fingerprint, problem, inside, own_files, own_size."""
        self._unlisted.discard(id_)
        pending = self._folders.get(id_)
        if pending is not None:
            pending[4:9] = known
        else:
            self._db.execute(
                "UPDATE folder SET fingerprint=?, problem=?, inside=?, own_files=?, own_size=? WHERE id=?",
                (*known, id_),
            )

    # Entries

    def _fill(self, folder: int, path: str, listing: Listing, new: dict[str, int]) -> None:
        """Store everything listed in an empty directory, with a fast path for ordinary files, the most common kind."""
        id_, now = self._next_id, self._stamp(folder)
        add = self._inserts.append
        size = disk = files = 0
        others = []
        for name, status in zip(listing.names, listing.statuses, strict=True):
            mtime, ctime, inode = status.st_mtime_ns, status.st_ctime_ns, status.st_ino
            if (
                status.st_mode & 0o170000 != 0o100000
                or status.st_nlink != 1
                or not (0 <= mtime <= MAX_INT and 0 <= ctime <= MAX_INT and inode <= MAX_INT)
            ):
                others.append((name, status))
                continue
            own_size, own_disk = status.st_size, status.st_blocks * 512
            size += own_size
            disk += own_disk
            files += 1
            dot = name.rfind(".")
            extension = "" if dot < 0 else name[dot + 1 :].lower() if name[0] != "." else paths.extension(name)
            add((
                id_, folder, name, 0, own_size, own_disk, 0, 0, mtime, ctime, inode, status.st_dev, 1, extension, now,
            ))  # fmt: skip
            id_ += 1
        self._next_id = id_
        if files:
            self.changed = True
            self._add(folder, size, disk, files, 0)
        for name, status in others:
            self._insert(folder, path, DiskEntry.of(name, status), new)

    def _insert(self, parent: int, path: str, found: DiskEntry, new: dict[str, int]) -> int:
        name, kind, inode, device, links, size, disk, mtime, ctime = found
        id_ = self._next_id
        self._next_id += 1
        self.changed = True
        if kind == schema.DIRECTORY:
            extension = ""
            new[name] = id_
            self._new_folder(id_, parent, name, f"{path}{name}/", disk)
            self._add(parent, 0, disk, 0, 1)
        else:
            extension = paths.extension(name)
            if links > 1:
                self._touch(inode, device)
            self._add(parent, size, 0 if links > 1 else disk, kind == schema.FILE, 0)
        stamp = self._stamp(parent)
        self._inserts.append(
            (id_, parent, name, kind, size, disk, 0, 0, mtime, ctime, inode, device, links, extension, stamp)
        )
        return id_

    def _new_folder(self, id_: int, parent: int, name: str, path: str, disk: int) -> None:
        self._parents[id_] = parent
        self._shown[id_] = rows_below(self._rows_of(parent), name)
        self._folders[id_] = [id_, parent, path, disk, None, None, 0, 0, 0, self._shown[id_]]

    def _rows_of(self, folder: int) -> int:
        rows = self._shown.get(folder)
        if rows is None:
            rows = self._shown[folder] = fetch_value(self._db, "SELECT rows FROM folder WHERE id = ?", (folder,)) or 0
        return rows

    def _stamp(self, parent: int) -> int:
        """Return the value of `scanned` for an entry in a directory."""
        return -self._now if self._rows_of(parent) in (schema.WHOLE, schema.INSIDE) else self._now

    def _put(self, parent: int, path: str, found: DiskEntry, before: StoredEntry | None, new: dict[str, int]) -> int:
        if before is None:
            return self._insert(parent, path, found, new)
        _, kind, inode, device, links, size, disk, mtime, ctime = found
        if kind != before.kind:
            self.remove(before)
            return self._insert(parent, path, found, new)
        stamp = self._stamp(parent) if not before.scanned else self._now if before.scanned > 0 else -self._now
        same = (before.inode, before.device, before.links, before.mtime, before.ctime) == (
            inode, device, links, mtime, ctime,
        )  # fmt: skip
        if kind == schema.DIRECTORY:
            own: int = fetch_value(self._db, "SELECT own_disk FROM folder WHERE id = ?", (before.id,))
            if own != disk:
                self._db.execute("UPDATE folder SET own_disk = ? WHERE id = ?", (disk, before.id))
                self._add(before.id, 0, disk - own, 0, 0)
            if same and before.scanned:
                return before.id
            if not before.scanned:
                self._add(parent, 0, 0, 0, 1)
            self._db.execute(
                "UPDATE entry SET mtime=?, ctime=?, inode=?, device=?, links=?, scanned=? WHERE id=?",
                (mtime, ctime, inode, device, links, stamp, before.id),
            )
        else:
            if same and before.scanned and (before.size, before.disk) == (size, disk):
                return before.id
            if links > 1:
                # Touch it first: while it is the only name it counts as unlinked, and the touch corrects that.
                self._touch(inode, device)
            self._leave(before)
            self._add(parent, size, 0 if links > 1 else disk, kind == schema.FILE, 0)
            self._db.execute(
                "UPDATE entry SET size=?, disk=?, mtime=?, ctime=?, inode=?, device=?, links=?, scanned=? WHERE id=?",
                (size, disk, mtime, ctime, inode, device, links, stamp, before.id),
            )
        self.changed = True
        return before.id

    def remove(self, gone: StoredEntry) -> None:
        """Remove an entry and everything below it."""
        self.changed = True
        self._unlisted.add(gone.parent)
        if gone.kind != schema.DIRECTORY:
            self._leave(gone)
            self._db.execute("DELETE FROM entry WHERE id = ?", (gone.id,))
            return
        _, bounds = self._leave_folder(gone)
        inside = "SELECT id FROM folder WHERE path >= ? AND path < ?"
        self._db.execute(f"DELETE FROM entry WHERE parent IN ({inside})", bounds)
        self._db.execute("DELETE FROM folder WHERE path >= ? AND path < ?", bounds)
        self._db.execute("DELETE FROM entry WHERE id = ?", (gone.id,))

    def move(self, moved: StoredEntry, parent: int, name: str) -> None:
        """Move an entry, with everything below it, to a directory and name that are free."""
        self.flush()
        self.changed = True
        self._unlisted.update((moved.parent, parent))
        target = folder_path(self._db, parent)
        if target is None:
            raise LookupError(f"no directory with id {parent}")
        if moved.kind != schema.DIRECTORY:
            self._leave(moved)
            linked = (moved.inode, moved.device) in self._groups
            self._add(parent, moved.size, 0 if linked else moved.disk, moved.kind == schema.FILE, 0)
            self._db.execute(
                "UPDATE entry SET parent=?, name=?, extension=?, scanned=sign(?)*abs(scanned) WHERE id=?",
                (parent, name, paths.extension(name), self._stamp(parent), moved.id),
            )
            return
        moved, bounds = self._leave_folder(moved)
        self._db.execute("UPDATE entry SET parent=?, name=? WHERE id=?", (parent, name, moved.id))
        self._db.execute("UPDATE folder SET parent=? WHERE id=?", (parent, moved.id))
        self._db.execute(
            "UPDATE folder SET path = ? || substr(path, ?) WHERE path >= ? AND path < ?",
            (f"{target}{name}/", len(bounds[0]) + 1, *bounds),
        )
        self._parents.pop(moved.id, None)
        rows = rows_below(self._rows_of(parent), name)
        if rows != self._rows_of(moved.id):
            set_rows(self._db, f"{target}{name}", rows)
            self._shown.clear()
        self._add(parent, moved.size, moved.disk, moved.files, moved.directories + bool(moved.scanned))

    # Sums

    def _add(self, folder: int, size: int, disk: int, files: int, directories: int) -> None:
        delta = self._deltas.setdefault(folder, [0, 0, 0, 0])
        delta[0] += size
        delta[1] += disk
        delta[2] += files
        delta[3] += directories

    def _leave(self, entry: StoredEntry) -> None:
        """Remove a non-directory entry from the sums."""
        if entry.links > 1:
            self._touch(entry.inode, entry.device)
        # A touched inode is no longer in the disk sums, whatever `entry` said of its links before.
        linked = (entry.inode, entry.device) in self._groups
        self._add(entry.parent, -entry.size, 0 if linked else -entry.disk, -(entry.kind == schema.FILE), 0)

    def _leave_folder(self, folder: StoredEntry) -> tuple[StoredEntry, tuple[str, str]]:
        """Remove a directory from the sums above it. Returns its current row, and the bounds of the paths below it."""
        self.flush()
        bounds = below(folder_path(self._db, folder.id) or "")
        linked = (
            "SELECT DISTINCT entry.inode, entry.device FROM folder JOIN entry ON entry.parent = folder.id"
            " WHERE folder.path >= ? AND folder.path < ? AND entry.links > 1 AND entry.kind <> 1"
        )
        for inode, device in fetch_all(self._db, linked, bounds):
            self._touch(inode, device)
        # Apply pending changes where the directory was, so that its own sums are final.
        self._settle()
        (row,) = fetch_all(self._db, "SELECT * FROM entry WHERE id = ?", (folder.id,))
        now = StoredEntry(*row)
        self._add(now.parent, -now.size, -now.disk, -now.files, -now.directories - bool(now.scanned))
        return now, bounds

    def _touch(self, inode: int, device: int) -> None:
        """Record, once and before it changes, which directories count an inode with several links."""
        if (inode, device) in self._groups:
            return
        self._groups[inode, device] = None
        query = "SELECT id, parent, disk, links FROM entry WHERE inode=? AND device=? AND kind <> 1"
        rows = fetch_all(self._db, query, (inode, device))
        self._count([(parent, disk) for _, parent, disk, links in rows if links > 1], -1)
        for id_, parent, disk, links in rows:
            if links == 1:
                # It got a second name since it was scanned: treat it as linked from now on.
                self._add(parent, 0, -disk, 0, 0)
                self._db.execute("UPDATE entry SET links = 2 WHERE id = ?", (id_,))

    def _count(self, links: list[Row], sign: int) -> None:
        """Add an inode, given the folder and disk size of each of its names, to each directory above any of them."""
        most = max((disk for _, disk in links), default=0)
        counted: set[int] = set()
        for folder, _ in links:
            if folder in counted:
                continue
            self._add(folder, 0, sign * most, 0, 0)
            for id_ in self._chain(folder):
                if id_ in counted:
                    # This directory and all above it already count the inode.
                    self._add(id_, 0, -sign * most, 0, 0)
                    break
                counted.add(id_)

    def _chain(self, folder: int) -> Iterator[int]:
        """Yield a directory and all directories above it, innermost first."""
        while folder > 0:
            yield folder
            parent = self._parents.get(folder)
            if parent is None:
                parent = fetch_value(self._db, "SELECT parent FROM folder WHERE id = ?", (folder,)) or 0
                self._parents[folder] = parent
            folder = parent

    # Finishing

    def flush(self) -> None:
        """Write the entries added so far; the sums follow in `finish`."""
        self._db.executemany("INSERT INTO entry VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", self._inserts)
        self._db.executemany("INSERT INTO folder VALUES(?,?,?,?,?,?,?,?,?,?)", map(tuple, self._folders.values()))
        self._inserts.clear()
        self._folders.clear()

    def finish(self) -> None:
        """Write everything, including the sums of all directories above a change."""
        self.flush()
        for inode, device in self._groups:
            query = "SELECT parent, disk FROM entry WHERE inode=? AND device=? AND kind <> 1 AND links > 1"
            self._count(fetch_all(self._db, query, (inode, device)), 1)
        self._groups.clear()
        self._settle()
        # Otherwise a directory that later returns to its listed state would wrongly count as unchanged.
        self._db.executemany(
            "UPDATE folder SET fingerprint = ? WHERE id = ? AND length(fingerprint) > 0",
            ((schema.NO_FINGERPRINT, id_) for id_ in self._unlisted),
        )
        self._unlisted.clear()

    def _settle(self) -> None:
        sums: dict[int, list[int]] = {}
        for folder, delta in self._deltas.items():
            for id_ in self._chain(folder):
                total = sums.setdefault(id_, [0, 0, 0, 0])
                for at in range(4):
                    total[at] += delta[at]
        self._deltas.clear()
        self._db.executemany(
            "UPDATE entry SET size = size + ?, disk = disk + ?, files = files + ?, directories = directories + ?"
            " WHERE id = ?",
            ((*total, id_) for id_, total in sums.items() if any(total)),
        )


def _is_as_stored(found: DiskEntry, before: StoredEntry) -> bool:
    """True if a fingerprint would not distinguish the two."""
    return (found.kind, found.inode, found.ctime) == (before.kind, before.inode, before.ctime) and (
        found.kind == schema.DIRECTORY or (found.size, found.disk) == (before.size, before.disk)
    )
