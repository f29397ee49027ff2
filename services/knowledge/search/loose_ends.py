"""LooseEndList ends: broken links, with suggestions, and orphaned notes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import trio

from proto.suggestions import close
from services.knowledge import nodes
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.nodes import IndexedNote
from services.knowledge.notes.files import text_if_readable
from services.knowledge.notes.links import Reference, name_key
from services.knowledge.notes.markdown import parse, stem
from services.knowledge.operations.notes import BrokenLink
from services.knowledge.search import attachments
from services.runtime.database import Database
from services.runtime.roots import Roots, is_below
from services.shared.models.measure import ROUGH

_MEANT = 3
_REST = 20
"""Results are reused for this many times the duration of the search, or until a note changes."""

# Tags and relations in tag comments need no note. A note's link to itself is not an edge, but not broken either.
_DANGLING = """
SELECT src, kind, key FROM edge
WHERE dst IS NULL AND fixed = 0 AND kind IN ('CITES', 'LINKS_TO', 'REFERENCES', 'FOLLOWS', 'IMPLEMENTS')
    AND NOT EXISTS (SELECT 1 FROM name WHERE name.key = edge.key OR (other_key <> '' AND name.key = other_key))
ORDER BY src, position
"""
_ORPHANS = """
SELECT id FROM node AS own
WHERE NOT EXISTS (SELECT 1 FROM edge JOIN node ON node.id = edge.dst WHERE src = own.id)
    AND NOT EXISTS (SELECT 1 FROM edge WHERE dst = own.id)
ORDER BY id
"""

Dangling = tuple[str, str, str]
"""A link without a target: its note, its kind, and the key of its target."""


class LooseEndList(NamedTuple):
    """The first broken links and orphans, and their total numbers."""

    broken: Sequence[BrokenLink] = ()
    broken_count: int = 0
    orphans: Sequence[str] = ()
    orphan_count: int = 0


class LooseEnds:
    """Finds loose ends, and caches them until the database changes."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest
        self._kept: tuple[tuple[int, int], LooseEndList] = ((-1, -1), LooseEndList())
        self._kept_until = 0.0
        self._turn = trio.CapacityLimiter(1)

    async def found(self, limit: int) -> LooseEndList:
        """Return the first `limit` broken links and orphans.  Links out of the roots are not checked."""
        state = self._database.version, limit
        began = trio.current_time()
        if self._kept[0] != state or began > self._kept_until:
            dangling, orphans = await self._database.read(
                lambda db: (list(db.execute(_DANGLING)), [id_ for (id_,) in db.execute(_ORPHANS)])
            )
            notes = await self._database.read(nodes.every) if dangling else {}
            broken, count = await trio.to_thread.run_sync(
                _listed, dangling, notes, self._ingest.roots, limit, limiter=self._turn
            )
            self._kept = state, LooseEndList(broken, count, orphans[:limit], len(orphans))
            # Files other than notes can change without a change of the database.
            self._kept_until = trio.current_time() + _REST * (trio.current_time() - began)
        return self._kept[1]


def _listed(
    dangling: Sequence[Dangling], notes: Mapping[str, IndexedNote], roots: Roots, limit: int
) -> tuple[list[BrokenLink], int]:
    """Return the first `limit` broken links, and their total number.  Blocks on the disk."""
    beyond = frozenset(key for _, _, key in dangling if key.startswith("/") and not is_below(key, roots))
    files = attachments.there({key for _, _, key in dangling} - beyond, roots) | beyond
    broken = [each for each in dangling if each[0] in notes and each[2] not in files]
    names: dict[str, IndexedNote] = {}
    for node in notes.values() if broken else ():
        for name in (node.id, name_key(node.title), name_key(stem(node.place.path))):
            names.setdefault(name, node)
    listed: list[BrokenLink] = []
    written: dict[str, Mapping[tuple[str, str], Reference]] = {}
    for src, kind, key in broken[:limit]:
        trio.from_thread.check_cancelled()
        node = notes[src]
        if src not in written:
            text = text_if_readable(node.place, roots) or ""
            references = parse(text, node.place, ROUGH).references
            written[src] = {(each.kind, each.key): each for each in reversed(references)}
        found = written[src].get((kind, key), Reference(kind, key))
        listed.append(
            BrokenLink(
                note=src,
                path=node.place.path,
                link=found.written or key,
                line=found.line or None,
                meant=list(_meant(key, node, names)),
            )
        )
    return listed, len(broken)


def _meant(key: str, source: IndexedNote, names: Mapping[str, IndexedNote]) -> Iterator[str]:
    """Yield the notes with the most similar names, as they would be linked from the note `source`."""
    is_path = key.startswith("/")
    sought = name_key(os.path.basename(key) if is_path else key)
    near = (name for name in names if abs(len(name) - len(sought)) <= max(len(name), len(sought)) / 2)
    found = dict.fromkeys(names[name].id for name in close(sought, near, 2 * _MEANT))
    by_id = {node.id: node for node in names.values()} if found else {}
    for id_ in [each for each in found if each != source.id][:_MEANT]:
        place = by_id[id_].place
        folder = os.path.dirname(source.place.absolute)
        yield os.path.relpath(place.absolute, folder) if is_path and place.root == source.place.root else id_
