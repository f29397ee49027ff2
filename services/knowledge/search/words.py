"""Content words and sentences of notes.

Content words tell what a text is about; function words and numbers are ignored, and plurals are reduced to the
singular. Sentences of two notes are compared by the embedding model or, if it does not reply in time, by shared words.
"""

from __future__ import annotations

import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from proto.ops.embed import EmbedResult
from services.shared.text.cutting import Section
from services.shared.text.markdown import plain

_WORD = re.compile(r"[^\W\d_][\w'’-]*[^\W_]")  # noqa: RUF001  # a typographic apostrophe
_ADDRESS = re.compile(
    r"<!--.*?-->|\]\([^()\s]*\)|(?:https?://|www\.)[^\s<>()]+|<[^<>\n]*>|&[a-z]+;|`[^`\n]*`|\[\[|\]\]", re.DOTALL
)
_LEAST_CHARS = 4
_EMPTY_WORDS = frozenset(
    _WORD.findall(
        """
    able about above according across actually add added adding adds after again against allow allowed allows almost
    alone along already also although always among and another any anything appear apply are around available away back
    based basic because become been before begin begins behind being below best better between beyond both briefly but
    call called calls can cannot case cases cause certain change changes check clear come comes common complete
    consider contain contains could course create created creates current currently default defined detail details did
    different directly does doing done down during each early easily easy either else enough etc even ever every
    everything example examples except expected false few find fine first follow following follows for former found
    from full fully further general get gets getting give given gives goes going good great had hand has have having
    help helps hence here hold how however http https important include included includes including info information
    inside instead into itself just keep kept kind know known large last later least left less let lets like likely
    line little long look looks lot made main make makes making many may maybe mean means meant might more most mostly
    much multiple must name named need needed needs never new next nice none normal normally not note notes nothing now
    number off often old once one ones only open order other others otherwise our out over own page part particular
    particularly people perhaps place plain please point possible present prevent previous probably provide provided
    provides put quick quickly quite rather read real really reason recent regarding related require required requires
    result results right same say says second section see seem seems seen self set sets several shall should show shown
    shows similar simple simply since small some someone something sometimes soon specific specified start started
    state still stop such support supported supports sure take taken takes tell than thanks that the their them
    themselves then there therefore these they thing things think this those though through thus time times title todo
    together too toward true try two type types typically under unless unlike until upon use used useful user users
    uses using usual usually value values various version very via want wants was way ways well went were what whatever
    when where whether which while who whole whom whose why will with within without word words work working works
    would write written wrong yes yet you your yours
    aber alle allem allen aller alles als also andere anderen auch auf aus bei beim bereits bevor bin bis bitte dabei
    dadurch dafür daher damit danach dann daran darauf daraus darf darin darüber das dass dem den denn dennoch der deren
    des dessen deshalb dich die dies diese diesem diesen dieser dieses doch dort durch eben eher eigenen ein eine einem
    einen einer eines einige einigen einmal entweder etwa etwas euch euer für ganz gegen gibt haben hatte hatten hier
    hinter ihnen ihre ihrem ihren ihrer immer indem ist jede jedem jeden jeder jedes jedoch jetzt kann kein keine keinem
    keinen keiner können könnte machen mehr mein meine mich mit muss müssen nach nicht nichts noch nun nur oben oder
    ohne schon sehr sein seine seinem seinen seiner seit sich sie sind sobald solche soll sollen sollte sondern sonst
    soweit sowie über und uns unser unsere unter viel viele vielen vom von vor wann war waren warum was weil weitere
    welche welchen welcher wenn wer werden wie wieder wird wirklich wobei wodurch wohl wollen wurde wurden würde zu zum
    zur zwar zwischen
    """
    )
)


def without_addresses(text: str) -> str:
    """Strip link targets, comments, markup and inline code from Markdown."""
    return _ADDRESS.sub(" ", text)


def key_of(word: str) -> str:
    """Normalise a word for comparison, with plurals as singular; empty if it is not a content word."""
    key = unicodedata.normalize("NFKC", word).casefold().replace("’", "'").removesuffix("'s")  # noqa: RUF001
    is_name = word.isupper() and len(key) > 1
    if key in _EMPTY_WORDS or (len(key) < _LEAST_CHARS and not is_name and key.isascii()):
        return ""
    if len(key) > _LEAST_CHARS and key.endswith("ies"):
        return f"{key[:-3]}y"
    if len(key) >= _LEAST_CHARS and key.endswith("s") and not key.endswith(("ss", "us", "is")):
        return key[:-1]
    return key


def telling(text: str) -> list[tuple[str, str, int]]:
    """Return the content words of `text` in order: key, original word, and position."""
    found = ((key_of(match[0]), match[0], match.start()) for match in _WORD.finditer(text))
    return [each for each in found if each[0]]


def count_words(text: str) -> Counter[str]:
    """Count the content words of `text` by key."""
    return Counter(key for key, _, _ in telling(text))


def shared(first: Counter[str], second: Counter[str], limit: int) -> list[str]:
    """Return the words most frequent in both, longer ones first among equals."""
    both = first.keys() & second.keys()
    return sorted(both, key=lambda word: (-min(first[word], second[word]), -len(word), word))[:limit]


MAX_EACH = 24
"""Maximum number of sentences compared per note: those that share the most words with the other note."""

QUOTED_CHARS = 160
_SENTENCE_CHARS = 30
_DENSE_SENTENCE_CHARS = 12
"""Minimum for scripts that need fewer characters."""

_LEAST_COSINE, _LEAST_SHARE = 0.35, 0.15
_TOPIC = 0.5
"""Weight of each sentence's similarity to the topic of both notes, since a coincidental remark is not a good reason."""

_COMMON = 3
"""A sentence found word for word in this many notes is boilerplate."""

_SENTENCE = re.compile(r"\S.*?(?:[.!?][\"')\]]*(?=\s|$)|[。！？]|$)")  # noqa: RUF001  # full-width marks
_MARKER = re.compile(r"(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?|>\s*")
_POINTER = re.compile(r"(?:see|cf\.|siehe|vgl\.) ", re.IGNORECASE)
"""The beginning of a sentence that only refers elsewhere."""

_NO_PROSE = ("#", "|", "<", "===", "---", ":::", "[tag")
_FENCES = ("```", "~~~")


class Sentence(NamedTuple):
    """A sentence and its first line in the file, counted from 1."""

    line: int
    text: str

    @property
    def quoted(self) -> str:
        short = self.text if len(self.text) <= QUOTED_CHARS else f"{self.text[:QUOTED_CHARS].rsplit(' ', 1)[0]} …"
        return f"“{short}”"


Vectors = Mapping[str, Sequence[float]]
"""Unit vectors by text."""


def sentences(sections: Iterable[Section]) -> Iterator[Sentence]:
    """Yield the sentences of prose, without headings, tables and code."""
    fenced = False
    for section in sections:
        paragraph: list[Sentence] = []
        for number, raw in enumerate(section.text.split("\n"), section.first):
            line = raw.strip()
            if line.startswith(_FENCES):
                fenced, line = not fenced, ""
            marker = _MARKER.match(line)
            if fenced or marker or not line or line.startswith(_NO_PROSE):
                yield from _of(paragraph)
                paragraph = []
            line = line[marker.end() :] if marker else line
            if line and not fenced and not line.startswith(_NO_PROSE):
                paragraph.append(Sentence(number, line))
        yield from _of(paragraph)


def _of(paragraph: Sequence[Sentence]) -> Iterator[Sentence]:
    """Yield the sentences of a paragraph, given its lines."""
    text, begins = "", []
    for number, line in paragraph:
        begins.append((len(text), number))
        text += f"{line} "
    for match in _SENTENCE.finditer(text.rstrip()):
        said = plain(match[0])
        if (_SENTENCE_CHARS if said.isascii() else _DENSE_SENTENCE_CHARS) <= len(said) and not _POINTER.match(said):
            yield Sentence(max(number for at, number in begins if at <= match.start()), said)


def chosen(own: Sequence[Sentence], words: Counter[str], others: Counter[str]) -> list[Sentence]:
    """Choose the sentences of a note to compare with another one, given the content words of both, in text order."""
    if len(own) <= MAX_EACH:
        return list(own)
    both = words.keys() & others.keys()
    weight = {each: len(both & count_words(each.text).keys()) for each in own}
    best = sorted(weight, key=lambda each: (-weight[each], each.line))[:MAX_EACH]
    return sorted(best)


def commonplaces(notes: Iterable[Iterable[Sentence]]) -> frozenset[str]:
    """Return sentences that several notes contain word for word."""
    counts = Counter(text for own in notes for text in {each.text for each in own})
    return frozenset(text for text, count in counts.items() if count >= _COMMON)


def unpacked(texts: Sequence[str], found: EmbedResult) -> dict[str, Sequence[float]]:
    """Return the vectors of `texts` from the embedding result `found`."""
    numbers, width = found.vectors.data.cast("B").cast("f"), found.vectors.shape[1]
    return {text: numbers[row * width : (row + 1) * width].tolist() for row, text in enumerate(texts)}


def nearest(
    first: Sequence[Sentence], second: Sequence[Sentence], vectors: Vectors
) -> tuple[Sentence, Sentence] | None:
    """Return the two sentences nearest to each other and to the topic of both notes; None if no two are similar.

    They are compared by words if any has no vector.
    """
    if all(each.text in vectors for each in (*first, *second)):
        least = _LEAST_COSINE
        about = _about([vectors[each.text] for each in (*first, *second)])
        found = [
            (_cosine(one, other), _cosine(one, about) + _cosine(other, about), pair)
            for pair in product(first, second)
            for one, other in [(vectors[pair[0].text], vectors[pair[1].text])]
        ]
    else:
        least = _LEAST_SHARE
        words = {each.text: count_words(each.text).keys() for each in (*first, *second)}
        found = [
            (_share(words[one.text], words[other.text]), 0.0, (one, other)) for one, other in product(first, second)
        ]
    near = [each for each in found if each[0] >= least]
    best = max(near, key=lambda each: (each[0] + _TOPIC * each[1], -each[2][0].line, -each[2][1].line), default=None)
    return None if best is None else best[2]


def _about(vectors: Sequence[Sequence[float]]) -> list[float]:
    """Return the normalised sum of the vectors."""
    total = [sum(numbers) for numbers in zip(*vectors, strict=True)]
    length = math.hypot(*total) or 1.0
    return [number / length for number in total]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(operator.mul, one, other), 0.0)


def _share(one: KeysView[str], other: KeysView[str]) -> float:
    both = len(one & other)
    return both / len(one | other) if both > 1 else 0.0
