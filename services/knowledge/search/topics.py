"""Notes by topic: clusters, and the words that say what notes are about."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import apsw
import trio

from proto.ops.knowledge import Cluster, ClusteredNote
from services.knowledge.nodes import Node
from services.knowledge.notes.files import Place, text_if_readable
from services.knowledge.notes.markdown import parse
from services.runtime.models.measure import ROUGH
from services.runtime.roots import Roots

LABEL_TERMS = 3
MAX_READ = 200
"""Files that are read to label all clusters; the titles and tags of all notes are in the database."""

READ_EACH = 3
_READ_CHARS = 20_000

_WORD = re.compile(r"[^\W\d_][\w'-]*[^\W_]")
_MIN_CHARS = 4
_EMPTY_WORDS = frozenset(
    _WORD.findall(
        """
        about above across actually after again against also although always among another anything around away back
        because become been before behind being below best better between both cannot come comes could does doing done
        down during each either else enough even ever every everything example first following from further gets give
        given goes going good have having here however http https into instead itself just keep know known last later
        least less like likely made make makes making many maybe mean means might more most much must need needs never
        next note notes nothing often once only other others over part rather really right same seem seems several
        shall should show shows simply since some something sometimes still such sure take taken than that their them
        themselves then there these they thing things this those though through thus time together toward under unless
        until upon used uses using very want wants well went were what whatever when where whether which while whole
        whom whose will with within without work works would your yours
        """
    )
)


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
    clusters: Sequence[Sequence[str]], notes: Mapping[str, Node], roots: Roots, notes_each: int
) -> list[Cluster]:
    """The clusters with their labels. Blocks on the disk, in a thread of trio's."""
    each = max(1, min(READ_EACH, MAX_READ // max(1, len(clusters))))
    texts: list[list[str]] = []
    for position, ids in enumerate(clusters):
        trio.from_thread.check_cancelled()
        # A title says in few words what a body says in many.
        own = [f"{notes[id_].title} {notes[id_].title} {' '.join(notes[id_].tags)}" for id_ in ids]
        if position < MAX_READ:
            own += (_body(notes[id_].place, roots) for id_ in ids[:each])
        texts.append(own)
    terms = _telling(texts, LABEL_TERMS)
    return [
        Cluster(
            label=", ".join(own) or notes[ids[0]].title,
            size=len(ids),
            notes=[ClusteredNote(id=id_, title=notes[id_].title) for id_ in ids[:notes_each]],
        )
        for ids, own in zip(clusters, terms, strict=True)
    ]


def _body(place: Place, roots: Roots) -> str:
    # Of a file that is gone at this moment nothing is used: the label is made of the others.
    text = (text_if_readable(place, roots) or "")[:_READ_CHARS]
    return " ".join(section.text for section in parse(text, place, ROUGH).sections)


def count_words(text: str) -> Counter[str]:
    """How often each telling word stands in `text`, lower-cased; plural and singular count as one."""
    found: Counter[str] = Counter()
    for match in _WORD.finditer(text):
        word = match[0].casefold().removesuffix("'s")
        if len(word) >= _MIN_CHARS and word not in _EMPTY_WORDS:
            found[word] += 1
    for word in [word for word in found if word.endswith("s") and word[:-1] in found]:
        found[word[:-1]] += found.pop(word)
    return found


def shared(first: Counter[str], second: Counter[str], limit: int) -> list[str]:
    """The words that count most in both, longer ones first among equals."""
    both = first.keys() & second.keys()
    return sorted(both, key=lambda word: (-min(first[word], second[word]), -len(word), word))[:limit]


def _telling(groups: Sequence[Iterable[str]], limit: int) -> list[list[str]]:
    """For each group of texts the words that set it apart from the others (class-based TF-IDF: Grootendorst, 2022)."""
    counts = [sum((count_words(text) for text in texts), Counter[str]()) for texts in groups]
    total: Counter[str] = sum(counts, Counter[str]())
    average = sum(total.values()) / max(1, len(counts))

    def best(own: Counter[str]) -> list[str]:
        weight = {word: count * math.log(1 + average / total[word]) for word, count in own.items()}
        return sorted(weight, key=lambda word: (-round(weight[word], 9), word))[:limit]

    return [best(own) for own in counts]
