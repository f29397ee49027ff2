"""What to read for a task: the notes that match, and those that the matches are linked with.

A note's score is its own match and what flows to it over links: a part of each linked match, divided among that
note's links, so that an index page that links to everything recommends nothing in particular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from proto.ops.knowledge import Reading, SearchHit

FLOW = 0.3
MAX_LINKS = 200
"""Of one match; a note with more is an index."""


@dataclass(slots=True)
class _Candidate:
    own: float = 0.0
    flow: float = 0.0
    passage: str = ""
    leads: list[str] = field(default_factory=list)


def suggested(db: apsw.Connection, hits: Sequence[SearchHit], beside: str | None, limit: int) -> list[Reading]:
    """The best of the matches and of what they are linked with, but for the note `beside`."""
    candidates: dict[str, _Candidate] = {}
    for hit in hits:
        matched = candidates.setdefault(hit.id, _Candidate())
        matched.own = hit.score
        matched.passage = hit.context
    for hit in hits:
        around = _linked(db, hit.id)
        for id_ in around:
            candidate = candidates.setdefault(id_, _Candidate())
            candidate.flow += FLOW * hit.score / len(around)
            candidate.leads.append(hit.id)
    candidates.pop(beside or "", None)
    titles = {
        id_: row[0]
        for id_ in candidates
        if (row := db.execute("SELECT title FROM node WHERE id=?", (id_,)).fetchone()) is not None
    }
    best = sorted(titles, key=lambda id_: (-(candidates[id_].own + candidates[id_].flow), id_))[:limit]
    return [
        Reading(
            id=id_,
            title=titles[id_],
            score=round(candidates[id_].own + candidates[id_].flow, 6),
            reason=_reason(candidates[id_]),
        )
        for id_ in best
    ]


def _linked(db: apsw.Connection, id_: str) -> list[str]:
    rows = db.execute(
        "SELECT dst FROM edge WHERE src=?1 AND dst IS NOT NULL UNION SELECT src FROM edge WHERE dst=?1 LIMIT ?2",
        (id_, MAX_LINKS),
    )
    return [other for (other,) in rows if other != id_]


def _reason(candidate: _Candidate) -> str:
    leads = ", ".join(candidate.leads[:3]) + (" and others" if len(candidate.leads) > 3 else "")
    said = [f"matches in {candidate.passage}"] if candidate.own else []
    said += [f"linked with {leads}"] if leads else []
    return "; ".join(said)
