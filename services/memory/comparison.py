"""Compares statements: equal, contradictory, similar, or unrelated.

Only equal statements are ever merged, and they are equal only if they differ in nothing but case, white space and final
punctuation. Vectors cannot decide this: MiniLM gives "deployment is enabled" and "deployment is disabled" a higher
cosine than most paraphrases. So a cosine only links statements, and so does the share of common words or characters. A
contradiction is reported only if a rule is certain; `scripts/bench memory --pairs` measures both.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
import unicodedata
from typing import NamedTuple

from services.memory.vocabulary import (
    ADDS,
    ANTONYMS,
    CHANGED,
    DIRECTIONS,
    MOVES,
    NEGATIONS,
    NUMBERS,
    SMALL,
    STAYS,
    UNITS,
    VERBS,
)
from services.shared.text.invisible import visible

CLOSE_COSINE = 0.7
CLOSE_WORDS = 0.5
"""Share of the distinct words that both statements have (Jaccard)."""
CLOSE_CHARACTERS = 0.6
"""Share of the pairs of adjacent characters that both have (Dice): finds inflected forms in any language."""

UPDATE_COSINE, DOUBTFUL_COSINE = 0.45, 0.6
"""Least cosines at which a statement that something has changed may be about an earlier one with the same subject; and
if only a word of the subjects is the same, or only the earlier one says that something has changed."""

_SAME_FORM = 5
"""Words that begin with the same letters count as forms of one word where that only avoids a question."""

MAX_EXCHANGED = 2
"""Words that may differ on each side of a contradiction, such as a number and its unit."""

_FINAL = " \t\n.!,;:\u2026\u3002\uff01\uff0c\uff1b\uff1a\u0964\u06d4\u0589\u1362"
"""Final punctuation that does not change the meaning of a statement. A question mark does."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
"""Scripts without spaces between words; each of their characters is compared as a word."""

_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f\u0980-\u0dff"
)
_LETTER = rf"(?:[^\W\d_{_UNSPACED}]|[{_MARKS}])"
_TOKEN = re.compile(
    # A sign belongs to its number unless it connects the number to preceding text (2-3, 2024-05-01).
    r"(?P<number>(?<![\w.,])[+\-\u2212\u00b1]?\d+(?:[.,:/\-]\d+)*|\d+(?:[.,:/\-]\d+)*)"
    # "30seconds" and "9am" are a number and a unit; "C++", "F#", "node.js" and "v2" are one word.
    rf"|(?P<word>(?:{_LETTER}|_)(?:{_LETTER}|[\d_'\u2019]|[.\-](?={_LETTER}))*(?:\+\+|\#)?)"
    rf"|(?P<character>[{_UNSPACED}])"
    # Everything else that is not ordinary punctuation: comparison operators, currencies, emoji.
    r"|(?P<symbol>[^\w\s.,;:!?\u061f\uff1f\u2026\u3002\uff0c\u3001'\"\u2018-\u201f()\[\]{}\u2010-\u2015-]+|(?<=\s)-+>|->)"
)


class Relation(enum.Enum):
    """How a statement relates to an earlier one."""

    SAME = enum.auto()
    CONFLICT = enum.auto()
    SIMILAR = enum.auto()
    OTHER = enum.auto()


class Parts(NamedTuple):
    """A statement split for comparison. `tokens` exclude small words and negations; `names` were capitalised."""

    folded: str
    tokens: tuple[str, ...]
    labels: frozenset[int]
    """Tokens directly after another one, as in "floor 3", and not before what may be counted, as in "limit 3 days"."""
    verbs: tuple[int, ...]
    """Before which tokens a known verb stands."""
    words: frozenset[str]
    names: frozenset[str]
    negations: int
    characters: frozenset[str]


def normalised(text: str) -> str:
    """NFKC, except that superscripts and subscripts stay: 10\u00b2 is not 102."""
    return "".join(
        char
        if unicodedata.decomposition(char).startswith(("<super>", "<sub>"))
        else unicodedata.normalize("NFKC", char)
        for char in unicodedata.normalize("NFC", text)
    )


def fold(text: str) -> str:
    """Return the form used to test equality: case, white space and final punctuation are removed.

    Uses lower case rather than full case folding, which would turn "in Maßen" (in moderation) into "in Massen" (in
    masses).
    """
    return " ".join(unicodedata.normalize("NFC", normalised(text).lower()).split()).rstrip(_FINAL)


@functools.lru_cache(maxsize=4096)
def parts(text: str) -> Parts:
    tokens: list[str] = []
    names: set[str] = set()
    labels: set[int] = set()
    verbs: list[int] = []
    negations = 0
    follows_number = follows_token = False
    for place, match in enumerate(_TOKEN.finditer(visible(normalised(text)))):
        raw = match[0]
        low = raw.lower().replace("\u2019", "'").replace("\u2212", "-")
        if is_verb := low in VERBS:
            verbs.append(len(tokens))
        was_token, follows_token = follows_token, False
        if low in NEGATIONS or low.endswith("n't"):
            negations += 1
        elif low not in SMALL or (follows_number and low in UNITS):
            if was_token and match["character"] is None:
                labels.add(len(tokens))
                if low in UNITS or low.endswith("s"):
                    labels.discard(len(tokens) - 1)
            follows_token = not is_verb
            low = _singular(low.removesuffix("'s")) if match["word"] else low
            tokens.append(low)
            if match["word"] and (_is_identifier(raw) or (place and raw[0].isupper())):
                names.add(low)
        follows_number = match["number"] is not None
    folded = fold(text)
    pairs = frozenset(folded[at : at + 2] for at in range(len(folded) - 1))
    return Parts(
        folded, tuple(tokens), frozenset(labels), tuple(verbs), frozenset(tokens), frozenset(names), negations, pairs
    )


def tells_apart(query: str, one: str, other: str) -> bool:
    """Return whether a query has words that only one of two statements has."""
    return not parts(query).words.isdisjoint(parts(one).words ^ parts(other).words)


def has_words(query: str) -> bool:
    """Return True if a query has words or symbols to look for."""
    return bool(_searched(query))


def matched_by(query: str, text: str) -> bool:
    """Return True if a statement has all words of a query, in any script; a query without words matches by its
    symbols."""
    wanted, held, folded = _searched(query), _searched(text), visible(fold(text))
    wanted = frozenset(word for word in wanted if not _is_symbol(word)) or wanted
    # In scripts without spaces, and in Korean with its particles, a word may be part of a longer run.
    return all(word in held or (_is_inside(word) and word in folded) for word in wanted)


def closeness(one: str, other: str, cosine: float | None = None) -> float:
    """Return how close two statements are, 1 being the threshold of `relation`: the best of words, characters and
    cosine."""
    a, b = parts(one), parts(other)
    words = len(a.words & b.words) / max(1, len(a.words | b.words))
    characters = 2 * len(a.characters & b.characters) / max(1, len(a.characters) + len(b.characters))
    return max(words / CLOSE_WORDS, characters / CLOSE_CHARACTERS, (cosine or 0.0) / CLOSE_COSINE)


def relation(one: str, other: str, cosine: float | None = None) -> Relation:
    """Return how two statements relate; `cosine` is that of their vectors, if known."""
    a, b = parts(one), parts(other)
    if a.folded == b.folded:
        return Relation.SAME
    if closeness(one, other, cosine) < 1 and not _are_opposites(a, b):
        return Relation.SIMILAR if _is_move(a, b) or _is_move(b, a) else Relation.OTHER
    return Relation.CONFLICT if _contradict(a, b) else Relation.SIMILAR


def updates(new: str, old: str, related: Relation, cosine: float | None = None) -> bool:
    """Return whether a statement may say how something is now that an earlier one says otherwise.

    They contradict each other; or they have the same subject, by the words before their verbs, and say different things
    in nearly the same words; or one of them says that something has changed, and they are near enough in meaning. What
    adds up, such as travels, is not replaced.
    """
    a, b = parts(new), parts(old)
    (about_a, is_news), (about_b, was_news) = _subject(new), _subject(old)
    if related is Relation.SAME or not _ADDS.isdisjoint(b.words if is_news else a.words | b.words):
        return False
    if related is Relation.CONFLICT or _is_move(b, a):
        return True
    if related is Relation.SIMILAR and about_a == about_b and _said_only(a, b) and _said_only(b, a):
        return True
    if cosine is None or about_a.isdisjoint(about_b) or not (is_news or was_news):
        return False
    # "Ann's sister" is not Ann, but "Ann's bank is …" may be about where Ann banks.
    others = about_a ^ about_b
    is_same = is_news and (not others or not others.isdisjoint(a.words & b.words))
    return cosine >= (UPDATE_COSINE if is_same else DOUBTFUL_COSINE)


@functools.lru_cache(maxsize=4096)
def _subject(text: str) -> tuple[frozenset[str], bool]:
    """Return what a statement is about, and whether it says that something has changed.

    It is about the words before the first known verb, or else the first word, and what is of that: "Ann's dog".
    """
    statement = parts(text)
    tokens = statement.tokens[: statement.verbs[0]] if statement.verbs else ()
    if not tokens:
        tokens = statement.tokens[: 2 if _OF.match(statement.folded) else 1]
    return frozenset(tokens) - _CHANGING, _CHANGED.search(statement.folded) is not None


def _said_only(one: Parts, other: Parts) -> frozenset[str]:
    """Return the words of a statement, apart from verbs, that the other has in no form."""
    beginnings = {word[:_SAME_FORM] for word in other.words}
    return frozenset(word for word in one.words - _VERB_FORMS if word[:_SAME_FORM] not in beginnings)


def _contradict(a: Parts, b: Parts) -> bool:
    """Return True if the statements differ only by a negation, or by words that exclude each other."""
    only_a = [word for word in dict.fromkeys(a.tokens) if word not in b.words]
    only_b = [word for word in dict.fromkeys(b.tokens) if word not in a.words]
    is_negated = (a.negations > 0) != (b.negations > 0)
    if not only_a and not only_b:
        if is_negated:
            return True
        # In "from staging to production", the order carries the meaning.
        return a.tokens != b.tokens and not DIRECTIONS.isdisjoint(a.folded.split())
    if is_negated:
        # "Likes" and "does not like" are forms of one word.
        return sorted(map(_stem, only_a)) == sorted(map(_stem, only_b))
    if a.tokens[:1] == tuple(only_a[:1]) and b.tokens[:1] == tuple(only_b[:1]) and len(a.tokens) > 1:
        # They are about different things, unless only a sign or a number differs.
        return len(only_a) == len(only_b) == 1 and _is_number(only_a[0]) and _is_number(only_b[0])
    if not only_a or not only_b:
        # Only one of them has a symbol, such as a comparison or a currency.
        return all(_is_symbol(word) for word in only_a + only_b)
    return (
        len(only_a) == len(only_b) <= MAX_EXCHANGED
        and all(_exclude(x, y, a.names, b.names) for x, y in zip(only_a, only_b, strict=True))
        and _is_said(a, only_a)
        and _is_said(b, only_b)
    )


def _is_said(statement: Parts, words: list[str]) -> bool:
    """Return whether all of these words belong to what the statement says, not to what it is about.

    "Floor 3 is closed" and "floor 4 is closed" are about different floors. A word is said if it stands after a verb, at
    the end, or with nothing that shows the contrary. If two words stand apart, the first is said only after a verb.
    """
    tokens, verbs, labels = statement.tokens, statement.verbs, statement.labels
    places = [tokens.index(word) for word in words]
    is_apart = any(later - one > 1 for one, later in itertools.pairwise(sorted(places)))

    def is_said(place: int) -> bool:
        if any(verb <= place for verb in verbs):
            return place not in labels or place + 1 not in verbs
        if any(verb > place for verb in verbs):
            return False
        is_last = all(token in UNITS or token in words for token in tokens[place:])
        is_label = place in labels and _is_number(tokens[place])
        return is_last or not (is_apart or is_label)

    return all(is_said(place) for place in places)


def _are_opposites(a: Parts, b: Parts) -> bool:
    """Return True if the statements differ only by one word and its opposite; this is certain however short they
    are."""
    if a.negations or b.negations or len(a.tokens) != len(b.tokens) or len(a.tokens) == 1:
        return False
    differing = [(x, y) for x, y in zip(a.tokens, b.tokens, strict=True) if x != y]
    return len(differing) == 1 and differing[0][1] in ANTONYMS.get(differing[0][0], ())


def _is_move(a: Parts, b: Parts) -> bool:
    """Return whether one statement says where somebody is, and the other that they went elsewhere."""
    stays, moves = _STAYS.match(a.folded), _MOVES.match(b.folded)
    return stays is not None and moves is not None and stays["who"] == moves["who"]


_CHANGING = frozenset(("new", "old", "now", "former", "neue", "neuer", "neues", "alte", "alter", "altes"))
_OF = re.compile(r"(?:the )?\w+['\u2019]s ")
_CHANGED = re.compile(rf"(?<!\w)(?:{CHANGED})(?!\w)")
_STAYS, _MOVES = (re.compile(rf"(?P<who>\S.*?)(?: now)? (?:{verbs}) \S") for verbs in (STAYS, MOVES))


def _exclude(x: str, y: str, names_x: frozenset[str], names_y: frozenset[str]) -> bool:
    if _is_number(x) and _is_number(y):
        return NUMBERS.get(x, x) != NUMBERS.get(y, y)
    if x in UNITS and y in UNITS:
        return UNITS[x] != UNITS[y]
    if _is_symbol(x) and _is_symbol(y):
        return True
    if x.rstrip("+#") == y.rstrip("+#"):
        return True
    return y in ANTONYMS.get(x, ()) or (x in names_x and y in names_y)


def _is_number(word: str) -> bool:
    return word in NUMBERS or word.lstrip("+-\u00b1")[:1].isdigit()


def _is_symbol(word: str) -> bool:
    return not any(char.isalnum() for char in word)


def _is_identifier(word: str) -> bool:
    """Return True if a word is a name regardless of its position: it has digits, an inner capital or an underscore."""
    return any(char.isdigit() or char in "_+#." for char in word) or any(char.isupper() for char in word[1:])


def _stem(word: str) -> str:
    return word.removesuffix("s").removesuffix("e")


def _singular(word: str) -> str:
    """Reduce plurals and verb forms as far as possible without a dictionary."""
    if word in NUMBERS or word in UNITS or word in ANTONYMS:
        return word
    return word.removesuffix("s") if len(word) > 3 and word.isascii() and not word.endswith("ss") else word


@functools.lru_cache(maxsize=4096)
def _searched(text: str) -> frozenset[str]:
    return frozenset(match[0].lower().replace("\u2019", "'") for match in _WORDS.finditer(visible(normalised(text))))


_WORDS = re.compile(rf"[{_UNSPACED}]+|{_TOKEN.pattern}")
_INSIDE = re.compile(rf"[{_UNSPACED}\uac00-\ud7af]")


def _is_inside(word: str) -> bool:
    return _INSIDE.match(word) is not None


_VERB_FORMS = frozenset(map(_singular, VERBS))
_ADDS = frozenset(map(_singular, ADDS))
