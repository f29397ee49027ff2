"""Renaming a note with the links to it: what is to be done is written down before it is begun, and what a crash leaves
undone is done at the next start.

First the file gets its new name, which no file may have; then the links are rewritten, file by file. Each step may be
done twice: a link that is written as it will be is not one of those to be rewritten, and the note's own links are
rewritten only in the text that it had.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from proto.durable import replace_file, sync_folder
from proto.errors import LinckiaError
from services.knowledge import edges, ids
from services.knowledge.nodes import Node
from services.knowledge.notes.files import Place
from services.knowledge.notes.links import name_key, slug
from services.knowledge.writing.editing import decoded
from services.knowledge.writing.relinking import UNNAMEABLE, Move, relinked
from services.runtime.replace import hold, rename
from services.runtime.rewrite import Contended, TooLarge, content_hash, open_below, rewrite
from services.runtime.roots import OutsideRoots, Roots

_log = logging.getLogger("linckia.knowledge")


class Relink(msgspec.Struct, frozen=True):
    """Links of a file to be rewritten, by how they are written; only of a text with that hash, if there is one."""

    path: str
    names: dict[str, str]
    paths: dict[str, str]
    only: str = ""


class Renaming(msgspec.Struct, frozen=True):
    """All that is to be done."""

    source: Place
    target: Place
    relinks: list[Relink]


class _Entry(NamedTuple):
    folder: int
    name: str


def planned(db: apsw.Connection, node: Node, new: Place, title: str, roots: Roots) -> tuple[Move, list[Place]]:
    """What the new place changes for links to a note, and the other notes that have some.

    `title` is the note's title in its new place.
    """
    there = {Place(root, path): id_ for id_, root, path in db.execute("SELECT id, root, path FROM node")}
    wanted = ids.ids_of([new, *(place for place in there if place != node.place)], roots)
    others = {id_: wanted[place] for place, id_ in there.items() if place != node.place and wanted[place] != id_}
    own = edges.names(wanted[new], new, title)
    places = {key for key, _ in edges.names(node.id, node.place, "")}
    new_places = {key for key, _ in edges.names(wanted[new], new, "")}

    def holder(key: str) -> str:
        """Which note a name leads to afterwards."""
        found = [(rank, wanted[new]) for name, rank in own if name == key]
        found += [(0, after) for after in others.values() if after == key]
        for id_, rank in db.execute("SELECT id, rank FROM name WHERE key=? AND id<>?", (key, node.id)):
            if rank or id_ not in others:
                found.append((rank, others.get(id_, id_)))
        return min(found, default=(0, ""))[1]

    def leads(key: str, other_key: str) -> bool:
        return (holder(key) or (holder(other_key) if other_key else "")) == wanted[new]

    pointing = set(db.execute("SELECT DISTINCT key, other_key FROM edge WHERE dst=? AND fixed=0", (node.id,)))
    of_itself = db.execute("SELECT DISTINCT key, other_key FROM edge WHERE src=? AND fixed=0", (node.id,))
    pointing |= {pair for pair in of_itself if edges.target(db, *pair) == node.id}
    moving = set()
    for key, other_key in pointing:
        by = key if edges.target(db, key, "") == node.id else other_key
        if not leads(key, other_key) or (by in places and by not in new_places):
            moving.add((key, other_key))
    parts = new.path[:-3].split("/")
    names = ["/".join(parts[start:]) for start in reversed(range(len(parts)))]
    good = [name for name in names if not UNNAMEABLE.search(name) and leads(name_key(name), slug(name))]
    query = "SELECT DISTINCT root, path FROM node JOIN edge ON edge.src = node.id WHERE edge.dst=? AND fixed=0"
    linking = [Place(*row) for row in db.execute(query, (node.id,))]
    return Move(node.place, new, frozenset(moving), good), [place for place in linking if place != node.place]


class Journal:
    """The renaming that is under way, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, renaming: Renaming) -> None:
        """Raises OSError."""
        replace_file(self._path, msgspec.json.encode(renaming))

    def read(self) -> Renaming | None:
        """What was begun; None where nothing was, or nothing that can be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Renaming)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("a renaming that was begun cannot be read, and is not finished: %s", error)
            return None

    def clear(self) -> None:
        """It is done. Raises OSError."""
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)


def carried_out(renaming: Renaming, roots: Roots) -> Iterator[str]:
    """Do what is still to be done, a step each time that it is asked: first the name, then the links of each file.
    Blocks. Answers after each step the file that could not be changed, or an empty text.

    Raises FileExistsError: something has the new name. OSError, OutsideRoots, CannotReplace: it keeps the old one.
    """
    _moved(renaming.source, renaming.target, roots)
    yield ""
    for relink in renaming.relinks:
        yield "" if _relinked(relink, roots) else relink.path


def _moved(source: Place, target: Place, roots: Roots) -> None:
    if not os.path.lexists(source.absolute) and os.path.lexists(target.absolute):
        return
    with (
        open_below(roots, os.path.dirname(source.absolute), "") as old,
        open_below(roots, target.root, os.path.dirname(target.path), sync=True) as new,
        hold(Path(source.absolute)),
    ):
        before, after = (_Entry(f, os.path.basename(p.path)) for f, p in ((old, source), (new, target)))
        try:
            rename(before, after)
        except FileExistsError:
            # Where the file system cannot rename without overwriting, a kill may leave both names.
            if not os.path.samefile(source.absolute, target.absolute):
                raise
            os.unlink(before.name, dir_fd=old)
        for descriptor in {old, new}:
            os.fsync(descriptor)


def _relinked(relink: Relink, roots: Roots) -> bool:
    def change(data: bytes) -> bytes:
        if relink.only and content_hash(data) != relink.only:
            return data
        return relinked(decoded(data), relink.names, relink.paths)[0].encode()

    try:
        rewrite(relink.path, roots, change)
    except FileNotFoundError:
        return True
    except (OSError, OutsideRoots, TooLarge, Contended, LinckiaError) as error:
        _log.warning("links of %s could not be rewritten: %s", relink.path, error)
        return False
    return True


def renamed(node: Node, to: str) -> Place:
    """The place that `to` means for a note: another name in its folder, or a path below its root."""
    return Place(node.place.root, os.path.join(os.path.dirname(node.place.path), to) if "/" not in to else to)
