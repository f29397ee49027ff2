"""Walks compared with the known notes: files that came, changed and went, and those that only moved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.knowledge.ingest.walking import Walk, Walker
from services.knowledge.notes.files import Place, digest, text_if_readable
from services.knowledge.store.nodes import Known


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between a walk and the known notes."""

    arrived: tuple[Place, ...]
    changed: tuple[Place, ...]
    gone: tuple[Place, ...]


def compare(known: Mapping[Place, Known], walk: Walk) -> Changes:
    """The difference; a file that the walk could not see is neither changed nor gone."""
    arrived = tuple(place for place in walk.notes if place not in known)
    changed = tuple(place for place, stamp in walk.notes.items() if place in known and known[place].stamp != stamp)
    gone = tuple(place for place in known if place not in walk.notes and not walk.is_hidden_from_view(place))
    return Changes(arrived, changed, gone)


def moves(changes: Changes, known: Mapping[Place, Known], roots: Sequence[str], walk: Walk) -> dict[Place, str]:
    """New files that are gone ones in another folder: same name, and same inode or same content."""
    by_name: dict[str, list[Place]] = {}
    for place in changes.gone:
        by_name.setdefault(os.path.basename(place.path), []).append(place)
    found: dict[Place, str] = {}
    for place in changes.arrived:
        candidates = by_name.get(os.path.basename(place.path), [])
        for index, old in enumerate(candidates):
            if _is_same(walk, place, known[old], roots):
                found[place] = known[old].id
                del candidates[index]
                break
    return found


def _is_same(walk: Walk, place: Place, old: Known, roots: Sequence[str]) -> bool:
    stamp = walk.notes[place]
    if old.stamp is not None and (old.stamp.inode, old.stamp.size, old.stamp.mtime_ns) == (
        stamp.inode, stamp.size, stamp.mtime_ns,
    ):  # fmt: skip
        return True
    if old.hash is None:
        return False
    text = text_if_readable(place, roots)
    return text is not None and digest(text) == old.hash


def within(
    known: Mapping[Place, Known], walker: Walker, files: Iterable[str], folders: Iterable[str]
) -> dict[Place, Known]:
    """Those of the known notes that are at `files`, or anywhere below `folders`."""
    places = [place for path in files if (place := walker.place_of(path)) is not None]
    below = tuple(folder.rstrip(os.sep) + os.sep for folder in folders)
    if below:
        places += (place for place in known if place.absolute.startswith(below))
    return {place: known[place] for place in places if place in known}
