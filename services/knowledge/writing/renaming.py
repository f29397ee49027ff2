"""Rename a note and the links to it.  A journal is written first, so that a crash is recovered from at the next start.

First the file gets its new name, which must not exist; then the links are rewritten, file by file. Every step is
idempotent: rewriting does not match links it has already rewritten. If it could match them, and in the note itself,
links are rewritten only if the file still has its previous text.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from proto.errors import LinckiaError
from proto.host.durable import replace_file, sync_folder
from services.knowledge import edges, ids
from services.knowledge.nodes import IndexedNote
from services.knowledge.notes.files import Place
from services.knowledge.notes.links import name_key, slug
from services.knowledge.writing import canvases
from services.knowledge.writing.editing import decoded
from services.knowledge.writing.relinking import UNNAMEABLE, Move, relinked
from services.runtime import change_log
from services.runtime.change_log import Change, Who
from services.runtime.keyed import Record
from services.runtime.replace import hold, rename
from services.runtime.rewrite import Contended, TooLarge, content_hash, missing_folders, open_below, rewrite
from services.runtime.roots import OutsideRoots, Roots

_log = logging.getLogger("linckia.knowledge")


class Relink(msgspec.Struct, frozen=True):
    """Links to rewrite in a file, as old to new text; if `only` is set, only while the text has this hash."""

    path: str
    names: dict[str, str]
    paths: dict[str, str]
    only: str = ""
    files: dict[str, str] = {}
    """Of the cards of a canvas."""

    def apply(self, text: str) -> tuple[str, int]:
        """Return the text of the file with its links rewritten, and their number."""
        if canvases.is_canvas(self.path):
            return canvases.relinked(text, self.names, self.paths, self.files)
        return relinked(text, self.names, self.paths)


class Renaming(msgspec.Struct, frozen=True):
    """A complete renaming."""

    source: Place
    target: Place
    relinks: list[Relink]
    keyed: Record | None = None
    """The call that asked for it, if that has an idempotency key."""
    who: Who | None = None
    """That call, for the records of its changes."""


class _Entry(NamedTuple):
    folder: int
    name: str


def plan_move(
    db: apsw.Connection, node: IndexedNote, new: Place, title: str, roots: Roots,
    beyond: Mapping[Place, Collection[tuple[str, str]]],
) -> tuple[Move, list[Place]]:  # fmt: skip
    """Plan how a move affects the links in all notes.  Returns the move, and the other files with affected links.

    `title` is the note's title in its new place, and `beyond` are the references of files that are no notes. A link to
    another note is affected too if it would lead to this note or a third one afterwards.
    """
    there = {Place(root, path): id_ for id_, root, path in db.execute("SELECT id, root, path FROM node")}
    wanted = ids.ids_of([new, *(place for place in there if place != node.place)], roots)
    others = {id_: wanted[place] for place, id_ in there.items() if place != node.place and wanted[place] != id_}
    places = {id_: new if place == node.place else place for place, id_ in there.items()}
    own = edges.names(wanted[new], new, title)
    now = edges.having(db)

    def then(key: str) -> Iterator[edges.Candidate]:
        """Yield the notes that will have a key, by their current ids."""
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
        """Return the names that will lead to a note from `source`, shortest first."""
        seen = id_, source._replace(path=os.path.dirname(source.path))
        if seen not in named:
            named[seen] = tuple(
                _names(places[id_], source, lambda *keys: after.target(keys[0], keys[1], source) == id_)
            )
        return named[seen]

    moving: dict[Place, dict[tuple[str, str], tuple[str, ...]]] = {}
    linking: dict[Place, None] = {}
    concerned = _concerned(db, node.id, {key for key, _ in own} | others.keys() | set(others.values()))
    asked = [(node.place if src == node.id else places[src], src, key, other) for src, key, other in concerned]
    asked += [(place, "", key, other) for place, each in beyond.items() for key, other in each]
    for source, src, key, other_key in asked:
        leads_to = before.target(key, other_key, source)
        if leads_to is None:
            continue
        if leads_to == node.id != src:
            linking[source] = None
        by = key if before.target(key, "", source) == node.id else other_key
        lost = leads_to == node.id and by in by_place and by not in by_new_place
        later = new if src == node.id else source
        if lost or after.target(key, other_key, later) != leads_to:
            moving.setdefault(source, {})[key, other_key] = names(leads_to, later)
            linking[source] = None
    return Move(node.place, new, moving), [place for place in linking if place != node.place]


def _concerned(db: apsw.Connection, id_: str, keys: set[str]) -> set[tuple[str, str, str]]:
    """Return the references in a note, to it, and with names whose meaning changes."""
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
        # A path is always unambiguous.
        path = os.path.relpath(place.path[:-3], os.path.dirname(source.path) or ".")
        yield path if path.startswith("../") else f"./{path}"


class Journal:
    """The journal of the renaming in progress, on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, renaming: Renaming) -> None:
        """Store a renaming.  Raises OSError."""
        replace_file(self._path, msgspec.json.encode(renaming))

    def read(self) -> Renaming | None:
        """Return the renaming in progress; None if there is none, or it cannot be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Renaming)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("the journal of an interrupted renaming cannot be read, so it is not finished: %s", error)
            return None

    def clear(self) -> None:
        """Remove the journal.  Raises OSError."""
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)


def renaming_steps(renaming: Renaming, roots: Roots) -> Iterator[str]:
    """Do the remaining steps of a renaming, one per iteration: first the file name, then the links of each file.

    Blocks. Yields after each step the file that could not be changed, or an empty string.

    Raises:
        FileExistsError: the new name exists.
        OSError, OutsideRoots, CannotReplace: the file keeps its old name.
    """
    _moved(renaming.source, renaming.target, roots)
    yield ""
    for relink in renaming.relinks:
        yield "" if _relinked(relink, roots) else relink.path


def _moved(source: Place, target: Place, roots: Roots) -> None:
    if not os.path.lexists(source.absolute) and os.path.lexists(target.absolute):
        return
    with (
        change_log.recorded([Change("folder", each) for each in missing_folders(os.path.dirname(target.absolute))]),
        open_below(roots, os.path.dirname(source.absolute), "") as old,
        open_below(roots, target.root, os.path.dirname(target.path), sync=True) as new,
        hold(Path(source.absolute)),
        change_log.recorded([Change("move", source.absolute, target.absolute)]),
    ):
        before, after = (_Entry(f, os.path.basename(p.path)) for f, p in ((old, source), (new, target)))
        try:
            rename(before, after)
        except FileExistsError:
            # If the file system cannot rename without overwriting, a crash may leave both names.
            if not os.path.samefile(source.absolute, target.absolute):
                raise
            os.unlink(before.name, dir_fd=old)
        for descriptor in {old, new}:
            os.fsync(descriptor)


def _relinked(relink: Relink, roots: Roots) -> bool:
    def change(data: bytes) -> bytes:
        if relink.only and content_hash(data) != relink.only:
            return data
        return relink.apply(decoded(data))[0].encode()

    try:
        rewrite(relink.path, roots, change)
    except FileNotFoundError:
        return True
    except (OSError, OutsideRoots, TooLarge, Contended, LinckiaError) as error:
        _log.warning("links of %s could not be rewritten: %s", relink.path, error)
        return False
    return True


def renamed(node: IndexedNote, to: str) -> Place:
    """Resolve `to` for a note: a new name in its folder, or a path below its root."""
    return Place(node.place.root, os.path.join(os.path.dirname(node.place.path), to) if "/" not in to else to)
