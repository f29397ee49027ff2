"""Renaming a note with the links to it: what is to be done is written down before it is begun, and what a crash leaves
undone is done at the next start.

First the file gets its new name, which no file may have; then the links are rewritten, file by file. Each step may be
done twice: rewriting finds no link that it has rewritten. If it could find one, and in the note itself, links are
rewritten only while the file still has its former text.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from linckia.proto.durable import replace_file, sync_folder
from linckia.proto.errors import LinckiaError
from linckia.services.knowledge import edges, ids
from linckia.services.knowledge.nodes import Node
from linckia.services.knowledge.notes.files import Place
from linckia.services.knowledge.notes.links import name_key, slug
from linckia.services.knowledge.writing.editing import decoded
from linckia.services.knowledge.writing.relinking import UNNAMEABLE, Move, relinked
from linckia.services.runtime.replace import hold, rename
from linckia.services.runtime.rewrite import Contended, TooLarge, content_hash, open_below, rewrite
from linckia.services.runtime.roots import OutsideRoots, Roots

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
    """What the new place changes for the links of all notes, and the other notes that have some of those.

    `title` is the note's title in its new place. A link that leads to another note, and would lead to this one or to a
    third one afterwards, is of them too.
    """
    there = {Place(root, path): id_ for id_, root, path in db.execute("SELECT id, root, path FROM node")}
    wanted = ids.ids_of([new, *(place for place in there if place != node.place)], roots)
    others = {id_: wanted[place] for place, id_ in there.items() if place != node.place and wanted[place] != id_}
    places = {id_: new if place == node.place else place for place, id_ in there.items()}
    own = edges.names(wanted[new], new, title)
    now = edges.having(db)

    def then(key: str) -> Iterator[edges.Candidate]:
        """The notes that have a key afterwards, by their present ids."""
        yield from ((rank, node.id, new) for name, rank in own if name == key)
        yield from ((edges.ID, id_, places[id_]) for id_, after in others.items() if after == key)
        for rank, id_, place in now(key):
            if id_ != node.id and (rank != edges.ID or id_ not in others):
                yield rank, id_, place

    before, after = edges.Finder(now), edges.Finder(then)
    by_place = {key for key, _ in edges.names(node.id, node.place, "")}
    by_new_place = {key for key, _ in edges.names(wanted[new], new, "")}
    named: dict[tuple[str, Place], tuple[str, ...]] = {}

    def names(id_: str, source: Place) -> tuple[str, ...]:
        """The names that lead to a note from another one afterwards, shortest first."""
        seen = id_, source._replace(path=os.path.dirname(source.path))
        if seen not in named:
            named[seen] = tuple(
                _names(places[id_], source, lambda *keys: after.target(keys[0], keys[1], source) == id_)
            )
        return named[seen]

    moving: dict[Place, dict[tuple[str, str], tuple[str, ...]]] = {}
    linking: dict[Place, None] = {}
    for src, key, other_key in _concerned(db, node.id, {key for key, _ in own} | others.keys() | set(others.values())):
        source = node.place if src == node.id else places[src]
        leads_to = before.target(key, other_key, source)
        if leads_to is None:
            continue
        if leads_to == node.id != src:
            linking[source] = None
        by = key if before.target(key, "", source) == node.id else other_key
        lost = leads_to == node.id and by in by_place and by not in by_new_place
        if lost or after.target(key, other_key, places[src]) != leads_to:
            moving.setdefault(source, {})[key, other_key] = names(leads_to, places[src])
            linking[source] = None
    return Move(node.place, new, moving), [place for place in linking if place != node.place]


def _concerned(db: apsw.Connection, id_: str, keys: set[str]) -> set[tuple[str, str, str]]:
    """The references from a note, to it, and by the names that get another meaning."""
    query = "SELECT src, key, other_key FROM edge WHERE fixed=0 AND"
    found = set(db.execute(f"{query} src=?1 UNION {query} dst=?1", (id_,)))
    for key in keys:
        found |= set(db.execute(f"{query} key=?1 UNION {query} other_key=?1 AND other_key<>''", (key,)))
    return found


def _names(place: Place, source: Place, leads_there: Callable[[str, str], bool]) -> Iterator[str]:
    parts = place.path[:-3].split("/")
    for start in reversed(range(len(parts))):
        name = "/".join(parts[start:])
        if not UNNAMEABLE.search(name) and leads_there(name_key(name), slug(name)):
            yield name
    if place.root == source.root and not UNNAMEABLE.search(place.path):
        # A path always leads there.
        path = os.path.relpath(place.path[:-3], os.path.dirname(source.path) or ".")
        yield path if path.startswith("../") else f"./{path}"


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
