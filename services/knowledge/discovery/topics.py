"""Notes by topic: clusters with labels, those of the links among them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import trio

from proto.ops.knowledge import Cluster, ClusteredNote
from services.knowledge.discovery import vocabulary
from services.knowledge.notes.files import Place, text_if_readable
from services.knowledge.notes.markdown import parse

LABEL_TERMS = 3
MAX_READ = 200
"""Files that are read to label all clusters; the titles and tags of all notes are in the database."""

READ_EACH = 3
_READ_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Named:
    """A note as a label is made of it."""

    place: Place
    title: str
    tags: tuple[str, ...]


def all_notes(db: apsw.Connection) -> dict[str, Named]:
    """Every note by id."""
    rows = db.execute("SELECT id, root, path, title, tags FROM node ORDER BY id")
    return {id_: Named(Place(root, path), title, tuple(json.loads(tags))) for id_, root, path, title, tags in rows}


def linked(db: apsw.Connection) -> list[list[str]]:
    """Connected components of the links between notes; the best linked note of each first, the largest first.

    A note without links is a component of its own.
    """
    parent = {id_: id_ for (id_,) in db.execute("SELECT id FROM node ORDER BY id")}
    degree = dict.fromkeys(parent, 0)

    def find(id_: str) -> str:
        while parent[id_] != id_:
            parent[id_] = parent[parent[id_]]
            id_ = parent[id_]
        return id_

    for source, target in db.execute("SELECT DISTINCT src, dst FROM edge WHERE dst IS NOT NULL"):
        if source in parent and target in parent:
            degree[source] += 1
            degree[target] += 1
            one, other = sorted((find(source), find(target)))
            parent[other] = one
    found: dict[str, list[str]] = {}
    for id_ in sorted(parent, key=lambda id_: (-degree[id_], id_)):
        found.setdefault(find(id_), []).append(id_)
    return sorted(found.values(), key=lambda ids: (-len(ids), ids[0]))


def labelled(
    clusters: Sequence[Sequence[str]], notes: dict[str, Named], roots: Sequence[str], notes_each: int
) -> list[Cluster]:
    """The clusters with their labels. Blocks on the disk, in a thread of trio's."""
    each = max(1, min(READ_EACH, MAX_READ // max(1, len(clusters))))
    texts: list[list[str]] = []
    read = 0
    for ids in clusters:
        trio.from_thread.check_cancelled()
        # A title says in few words what a body says in many.
        own = [f"{notes[id_].title} {notes[id_].title} {' '.join(notes[id_].tags)}" for id_ in ids]
        for id_ in ids[:each]:
            if read < MAX_READ:
                read += 1
                own.append(_body(notes[id_].place, roots))
        texts.append(own)
    terms = vocabulary.telling(texts, LABEL_TERMS)
    return [
        Cluster(
            label=", ".join(own) or notes[ids[0]].title,
            size=len(ids),
            notes=[ClusteredNote(id=id_, title=notes[id_].title) for id_ in ids[:notes_each]],
        )
        for ids, own in zip(clusters, terms, strict=True)
    ]


def _body(place: Place, roots: Sequence[str]) -> str:
    # Of a file that is gone at this moment nothing is used: the label is made of the others.
    text = (text_if_readable(place, roots) or "")[:_READ_CHARS]
    return " ".join(section.text for section in parse(text, place).sections)
