"""Reading suggestions: notes that match a task or a note, and notes related to them by links and folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from proto.ops.retrieve import UNLIKELY
from services.knowledge import nodes
from services.knowledge.nodes import IndexedNote
from services.knowledge.operations.notes import Reading, SearchHit

SHORT_CHARS = 200
"""For notes shorter than this, names, tags and links say more than the text."""

FLOW = 0.3
MAX_LINKS = 200
"""Maximum number of links followed from a match; a note with more is an index page."""

_FOLDER_SCORE = 0.01
"""Lower than any match, so these are only shown if there is nothing else."""

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


def query_of(db: apsw.Connection, node: IndexedNote, text: str) -> str:
    """Build the search query for a note.  For a short one it includes tags, folders and titles of linked notes."""
    parts = [node.title, text]
    if len(text) < SHORT_CHARS:
        around = [nodes.find(db, id_) for (id_,) in db.execute(_AROUND, (node.id, 10))]
        parts += [*node.tags, *node.place.path[:-3].replace("-", " ").replace("_", " ").split("/")]
        parts += [other.title for other in around if other is not None]
    return "\n".join(dict.fromkeys(filter(None, parts)))


def readings(db: apsw.Connection, hits: Sequence[SearchHit], beside: IndexedNote | None, limit: int) -> list[Reading]:
    """Return the best of the matches and of the notes linked with them.

    If `beside` is given, notes linked with it are included and, if there is room, notes in its folder; the note itself
    is not. A note's score is its own match plus a share of each linked match. That share is divided among the links of
    the matching note, so that an index page does not recommend everything.
    """
    # Unlikely matches only count if they contain a word of the query.
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


def _in_folder(db: apsw.Connection, node: IndexedNote, limit: int) -> list[str]:
    """Return the notes in the same folder, latest first."""
    folder = node.place.path[: node.place.path.rfind("/") + 1]
    query = (
        "SELECT id FROM node WHERE root = ?1 AND substr(path, 1, length(?2)) = ?2"
        " AND instr(substr(path, length(?2) + 1), '/') = 0 ORDER BY date DESC, id LIMIT ?3"
    )
    return [id_ for (id_,) in db.execute(query, (node.place.root, folder, limit))]
