"""Gaps: notes that are similar in meaning but not linked, and the reasons for a link between them.

Near-duplicates are not gaps; see `duplicates`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from proto.ops.retrieve import Pair
from services.knowledge.notes.files import Place, text_if_readable
from services.knowledge.notes.markdown import parse
from services.knowledge.operations.notes import Gap
from services.knowledge.search.words import (
    Sentence,
    Vectors,
    chosen,
    count_words,
    nearest,
    sentences,
    shared,
    without_addresses,
)
from services.runtime.roots import Roots
from services.shared.models.measure import ROUGH

_NUMBER = re.compile(r"\d+")
_DATE = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_BRIEF = re.compile(r"(^|-)brief(?=-|$)")
_DEBRIEF = re.compile(r"(^|-)debrief(?=-|$)")
_SPECIFIED = re.compile(r"(^|-)(spec|specification|design|rfc|proposal|plan)(?=-|$)")
_IMPLEMENTED = re.compile(r"(^|-)(impl|implementation|implemented|built)(?=-|$)")


def without_links(db: apsw.Connection, pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of existing notes with different texts that are not linked in either direction."""
    query = (
        "SELECT EXISTS(SELECT 1 FROM edge WHERE src=?1 AND dst=?2), EXISTS(SELECT 1 FROM edge WHERE src=?2 AND dst=?1),"
        " (SELECT count(DISTINCT coalesce(hash, id)) FROM node WHERE id IN (?1, ?2))"
    )
    return [pair for pair in pairs if db.execute(query, (pair.first, pair.second)).fetchone() == (0, 0, 2)]


@dataclass(frozen=True, slots=True)
class NoteContent:
    """The parts of a note from which reasons are made."""

    title: str
    tags: tuple[str, ...]
    headings: tuple[str, ...]
    words: Counter[str]
    text: str
    sentences: tuple[Sentence, ...]


def content(place: Place, roots: Roots) -> NoteContent | None:
    """Read a note's content; None if its file cannot be read.  Blocks on the disk."""
    text = text_if_readable(place, roots)
    if text is None:
        return None
    note = parse(text, place, ROUGH)
    headings = dict.fromkeys(
        heading for section in note.sections for part in section.parts for heading in part.path if heading != note.title
    )
    body = "\n".join(section.text for section in note.sections)
    words = count_words(without_addresses(body))
    return NoteContent(
        note.title, note.tags, tuple(headings), words, " ".join(body.split()), tuple(sentences(note.sections))
    )


Compared = tuple[list[Sentence], list[Sentence]]
"""The sentences of two notes to compare."""


def compared(first: NoteContent | None, second: NoteContent | None, left_out: frozenset[str]) -> Compared:
    """Choose the sentences of two notes to compare, without those in `left_out`."""
    if first is None or second is None:
        return [], []
    one, other = ([each for each in content.sentences if each.text not in left_out] for content in (first, second))
    return chosen(one, first.words, second.words), chosen(other, second.words, first.words)


def gap(pair: Pair, first: NoteContent | None, second: NoteContent | None, said: Compared, vectors: Vectors) -> Gap:
    """Build the gap of a pair, with the link that its ids suggest, from the later or dependent note to the other."""
    source, target, kind = suggestion(pair.first, pair.second)
    found = nearest(*said, vectors)
    why = _reason(first, second)
    if found is not None:
        there, here = dict(zip((pair.first, pair.second), found, strict=True)), (source, target)
        if found[0].text == found[1].text:
            lines = (f"{id_} line {there[id_].line}" for id_ in here)
            why += f". Both say ({', '.join(lines)}) {found[0].quoted}"
        else:
            why += f". Nearest: {'; '.join(f'{id_} line {there[id_].line} {there[id_].quoted}' for id_ in here)}"
    return Gap(source_id=source, target_id=target, similarity=pair.similarity, reason=why, suggested_link_type=kind)


def _reason(first: NoteContent | None, second: NoteContent | None) -> str:
    """Describe in a sentence what two notes have in common."""
    if first is None or second is None:
        return "Both are close in meaning; the file of one of them cannot be read at the moment"
    said: list[str] = []
    tags = [tag for tag in first.tags if tag in second.tags][:4]
    others = {heading.casefold() for heading in second.headings}
    headings = [repr(heading[:80]) for heading in first.headings if heading.casefold() in others][:3]
    if terms := shared(first.words, second.words, 5):
        said.append(f"discuss {_listed(terms)}")
    if headings:
        said.append(f"have the heading{'s' * (len(headings) > 1)} {_listed(headings)}")
    if tags:
        said.append(f"carry the tag{'s' * (len(tags) > 1)} {_listed(tags)}")
    return f"Both {_listed(said or ['are close in meaning'])}, and neither links to the other"


def suggestion(first: str, second: str) -> tuple[str, str, str]:
    """Suggest source, target and type of a link between two ids."""
    for one, other in ((first, second), (second, first)):
        if _DEBRIEF.search(one) and _DEBRIEF.sub(r"\1brief", one) == other and _BRIEF.search(other):
            return one, other, "follows"
        if _IMPLEMENTED.search(one) and _SPECIFIED.search(other):
            return one, other, "implements"
    if _are_of_a_series(first, second):
        earlier, later = sorted((first, second), key=_numbers)
        return later, earlier, "follows"
    return first, second, "references"


def _are_of_a_series(first: str, second: str) -> bool:
    """Return whether the ids differ only in a date, or are consecutive numbers (`part-9`, `part-10`)."""
    if first == second or _NUMBER.sub("0", first) != _NUMBER.sub("0", second):
        return False
    if _DATE.search(first) and _DATE.search(second):
        return _DATE.sub("", first) == _DATE.sub("", second)
    return sum(abs(one - other) for one, other in zip(_numbers(first), _numbers(second), strict=True)) == 1


def _numbers(id_: str) -> list[int]:
    return [int(number[:18]) for number in _NUMBER.findall(id_)]


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
