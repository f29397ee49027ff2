"""What to read next: notes that match a task or a note, and those that links and folders lead to from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from linckia.proto.ops.knowledge import Reading, SearchHit
from linckia.proto.ops.retrieve import UNLIKELY
from linckia.services.knowledge import nodes
from linckia.services.knowledge.nodes import Node

SHORT_CHARS = 200
"""A shorter note says more by its names, its tags and its links than by its text."""

FLOW = 0.3
MAX_LINKS = 200
"""Of one match; a note with more is an index."""

_FOLDER_SCORE = 0.01
"""Below any match: these are shown where nothing else is."""

_AROUND = "SELECT dst FROM edge WHERE src=?1 AND dst IS NOT NULL UNION SELECT src FROM edge WHERE dst=?1 LIMIT ?2"


@dataclass(slots=True)
class _Candidate:
    own: float = 0.0
    flow: float = 0.0
    said: list[str] = field(default_factory=list)
    leads: list[str] = field(default_factory=list)

    @property
    def score(self) -> float:
        return self.own + self.flow

    @property
    def reason(self) -> str:
        linked = f"linked with {', '.join(self.leads[:3])}{' and others' if len(self.leads) > 3 else ''}"
        return "; ".join([*self.said, *([linked] if self.leads else ())])


def query_of(db: apsw.Connection, node: Node, text: str) -> str:
    """What is searched for a note: of a short one also its tags, folders and the titles that it is linked with."""
    parts = [node.title, text]
    if len(text) < SHORT_CHARS:
        around = [nodes.find(db, id_) for (id_,) in db.execute(_AROUND, (node.id, 10))]
        parts += [*node.tags, *node.place.path[:-3].replace("-", " ").replace("_", " ").split("/")]
        parts += [other.title for other in around if other is not None]
    return "\n".join(dict.fromkeys(filter(None, parts)))


def readings(db: apsw.Connection, hits: Sequence[SearchHit], beside: Node | None, limit: int) -> list[Reading]:
    """The best of the matches and of the notes that they are linked with; with the note `beside`, which is none of
    them, also what that is linked with and, where there is room, what lies in its folder.

    A note's score is its own match and the part that flows to it over links: a share of each linked match, divided
    among that note's links, so that an index page that links to everything recommends nothing in particular.
    """
    # A less likely match counts where a word of the query is in it.
    likely = [hit for hit in hits if hit.score >= UNLIKELY or hit.matched]
    candidates = {hit.id: _Candidate(own=hit.score, said=[f"matches in {hit.context}"]) for hit in likely}
    sources = {hit.id: hit.score for hit in likely} | ({} if beside is None else {beside.id: 1.0})
    for id_, score in sources.items():
        around = [other for (other,) in db.execute(_AROUND, (id_, MAX_LINKS)) if other != id_]
        for other in around:
            candidate = candidates.setdefault(other, _Candidate())
            candidate.flow += FLOW * score / len(around)
            candidate.leads.append(id_)
    if beside is not None:
        candidates.pop(beside.id, None)
        if len(candidates) < limit:
            for other in _in_folder(db, beside, limit + 1):
                reason = f"in the same folder, {beside.place.path.rpartition('/')[0] or '.'}/"
                candidates.setdefault(other, _Candidate(own=_FOLDER_SCORE, said=[reason]))
            candidates.pop(beside.id, None)
    there = {id_: node for id_ in candidates if (node := nodes.find(db, id_)) is not None}
    best = sorted(there, key=lambda id_: (-candidates[id_].score, id_))[:limit]
    return [
        Reading(id=id_, title=there[id_].title, score=round(candidates[id_].score, 6), reason=candidates[id_].reason)
        for id_ in best
    ]


def _in_folder(db: apsw.Connection, node: Node, limit: int) -> list[str]:
    """The notes that lie beside one, latest first."""
    folder = node.place.path[: node.place.path.rfind("/") + 1]
    query = (
        "SELECT id FROM node WHERE root = ?1 AND substr(path, 1, length(?2)) = ?2"
        " AND instr(substr(path, length(?2) + 1), '/') = 0 ORDER BY date DESC, id LIMIT ?3"
    )
    return [id_ for (id_,) in db.execute(query, (node.place.root, folder, limit))]
