"""The references in a note's text and front matter, each with the keys that name its target.

A reference is stored whether or not its target exists; it is an edge while some note has one of its keys. References in
code are examples and are ignored.
"""

from __future__ import annotations

import os
import re
import unicodedata
import urllib.parse
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from services.knowledge.notes.files import Place
from services.knowledge.notes.frontmatter import FrontMatter
from services.knowledge.notes.properties import ATTRIBUTE, DESTINATION, WIKILINK, property_links
from services.knowledge.notes.spelling import nfc

FRONT_MATTER_RELATIONS = ("references", "follows", "implements")
NO_RELATIONS = frozenset({"QUALITY"})
"""Keys in tag comments that are remarks, not relations."""

DEFINITION = re.compile(
    r"^(?:[ \t]*>)* {0,3}\[(?!\^)(?:[^\[\]\n\\]|\\.)+\]:[ \t]*(?:\n[ \t]*)?(?:<([^<>\n]*)>|([^\s<>]+))", re.MULTILINE
)
_TAG = re.compile(r"\[tag:([^\[\]\n]+)\]", re.IGNORECASE)
_HASHTAG = re.compile(
    # Scripts without spaces have their own punctuation before a tag.
    r"(?:(?<![^\s,;\u3001\u3002\uff01\uff08\uff0c\uff1a\uff1b\uff1f\u300c\u300e\u3010\u30fb])|(?<=[^\]]\())"
    # A tag does not contain punctuation of any script.
    r"#([^\s\x00-,.:-@\[-^`{-\xa9\xab\xbb\u2000-\u200c\u200e-\u206f\u3001-\u3004\u3008-\u3020\u3030"
    r"\uff00-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+)"
)
_LEGACY_TAG = re.compile(r"(?<![\w/.#\[-])tag-(\w[\w-]*)", re.IGNORECASE)
_TAG_COMMENT = re.compile(r"<!--[ \t]*tags:((?:[^<-]++|-(?!->)|<(?!!--[ \t]*tags:))*+)-->", re.IGNORECASE)
_RELATION = re.compile(r"\[\s*([^\[\]:]+?)\s*:\s*([^\[\]]+?)\s*\]")
_ITEMS = re.compile(r"^[ \t]*[\"']?tags[\"']?[ \t]*:[ \t]*(?:#[^\n]*)?(?:\n[ \t]*-|\[)", re.IGNORECASE | re.MULTILINE)
_BETWEEN_RELATIONS = re.compile(r"\]\s*\[")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
FRAGMENT = re.compile(r"#\S")
_NO_ID = re.compile(r"[\x00-,./:-`{-\x7f]")
_JOINER = "\u200d"
"""Joins the characters of a composed emoji."""

_BACKTICKS = re.compile(r"`+")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference: `key` and, if it is not empty, `other_key` are tried in that order.

    `target` is the name itself if the target need not exist, else None. `written` is the target as written in the note,
    in line `line` (from 1; 0 in the front matter); both are ignored in comparisons.
    """

    kind: str
    key: str
    other_key: str = ""
    target: str | None = None
    written: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


def slug(name: str) -> str:
    """Convert a name to an id: lower case, with `-` for every ASCII character outside `a-z0-9-`, and for every other
    character that is not a letter, digit or emoji."""
    ascii_alone = _NO_ID.sub("-", nfc(name.lower()))
    if ascii_alone.isascii():
        return ascii_alone
    return "".join(each if each.isascii() or _is_kept(each) else "-" for each in ascii_alone)


def _is_kept(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] in "LMN" or kind in ("So", "Sk") or character == _JOINER


def name_key(name: str) -> str:
    """Normalise a title, file name or relative path for comparison: ignore case, `.md` and white space differences."""
    text = nfc(nfc(" ".join(name.split())).casefold())
    return text.removesuffix(".md").removeprefix("./").strip("/")


def path_key(absolute: str) -> str:
    """Normalise an absolute path for comparison of link targets, which is exact."""
    return "/" + nfc(os.path.normpath(absolute).lstrip("/"))


def pointers(
    body: str, code: Sequence[tuple[int, int]], front: FrontMatter, place: Place
) -> tuple[tuple[Reference, ...], tuple[str, ...]]:
    """Return the references of the note at `place` in text order, and its normalised tags.

    Args:
        body: the text after the front matter, with `\\n` line breaks.
        code: ranges of lines of code in it, from 0, end exclusive.
    """
    references: list[Reference] = []
    tags = [tag for value in front.values.get("tags", ()) for tag in _listed(value, front)]
    references += in_properties(front, place)
    text = without_code(body, code)
    found: list[tuple[int, str, Iterable[Reference]]] = []
    outside: list[str] = []
    after = 0
    for start, end, content in tag_comments(text):
        for entry in entries(content):
            match = _RELATION.fullmatch(entry)
            if match is None:
                tags.append(entry)
            elif match[1].upper() not in NO_RELATIONS:
                targets = filter(None, map(str.strip, match[2].split(",")))
                found.append((start, entry, [Reference(match[1].upper(), name_key(t), "", t) for t in targets]))
        outside += (text[after:start], " " * (end - start))
        after = end
    text = "".join((*outside, text[after:]))
    found += [(match.start(), match[1], named("CITES", match[1], place)) for match in WIKILINK.finditer(text)]
    for pattern in (DESTINATION, DEFINITION, ATTRIBUTE):
        for match in pattern.finditer(text):
            destination = next(filter(None, match.groups()), "")
            found.append((match.start(), destination, linked(destination, place)))
    for match in _TAG.finditer(text):
        tags.append(match[1])
        found.append((match.start(), match[1], named("TAGGED_AS", match[1], place)))
    tags += hashtags(_without_comments(text))
    for match in _LEGACY_TAG.finditer(text):
        name = name_key(match[1].rstrip("-_"))
        found.append((match.start(), name, [Reference("EXEMPLIFIES", name, f"tag-{name}")]))
    ends = [at for at, character in enumerate(body) if character == "\n"] if found else []
    for at, written, each in sorted(found, key=lambda item: item[0]):
        line = front.lines + 1 + bisect_right(ends, at)
        references += (replace(reference, written=written, line=line) for reference in each)
    unique = dict.fromkeys(reference for reference in references if reference.key)
    return tuple(unique), clean_tags(tags)


def _listed(value: str, front: FrontMatter) -> list[str]:
    """Return the tags in a value of `tags`. If that is one text, white space separates them, as commas do."""
    is_text = not any(key == "tags" for key, _, _ in front.flows) and not _ITEMS.search(front.source)
    return value.replace(",", " ").split() if is_text else value.split(",")


def in_properties(front: FrontMatter, place: Place) -> Iterator[Reference]:
    """Yield the references in a front matter: names in its relations, and links in any property."""
    found: list[tuple[int, str, Iterable[Reference]]] = []
    covered: set[int] = set()
    for link in property_links(front):
        relation = link.key.upper() if link.key in FRONT_MATTER_RELATIONS else ""
        each = linked(link.inside, place) if link.is_path else named("CITES", link.inside, place)
        related = [replace(one, kind=relation or one.kind) for one in each]
        found.append((link.offsets[0], link.inside, related))
        covered.update(link.offsets)
    for scalar in front.scalars:
        if scalar.key in FRONT_MATTER_RELATIONS and covered.isdisjoint(range(scalar.start, scalar.end)):
            found.append((scalar.start, scalar.value, named(scalar.key.upper(), scalar.value, place)))
    for _, written, references in sorted(found, key=lambda item: item[0]):
        yield from (replace(one, written=written) for one in references)


def clean_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Normalise tags for comparison: trimmed, without `#`, case-folded, NFC, without duplicates."""
    cleaned = (tag.strip().strip("\"'").removeprefix("#").strip().strip("/") for tag in tags)
    return tuple(dict.fromkeys(nfc(nfc(tag).casefold())[:256] for tag in cleaned if tag))


def with_parents(tags: Iterable[str]) -> Iterable[str]:
    """Add the parents of nested tags: `a/b/c` is found by `a/b` and `a` too."""
    return dict.fromkeys(tag[:end] for tag in tags for end in (len(tag), *_slashes(tag)))


def _slashes(tag: str) -> list[int]:
    return [at for at, character in enumerate(tag) if character == "/"]


def hashtags(text: str) -> Iterator[str]:
    """Yield the tags of a text written `#like/this`, in any script, except numbers and the fragments of links."""
    for match in _HASHTAG.finditer(text):
        tag = match[1].rstrip("/-'")
        if tag and not tag.isdecimal():
            yield tag


def named(kind: str, name: str, place: Place) -> Iterator[Reference]:
    """Yield the reference that a name makes: an id, title, file name or path."""
    text = name.strip().removeprefix("[[").removesuffix("]]").split("|")[0].strip().rstrip("\\")
    if fragment := FRAGMENT.search(text, text.rfind("\n") + 1):
        text = text[: fragment.start()].strip()
    if not text:
        return
    if text.startswith(("./", "../", "/")):
        path = text if text.lower().endswith(".md") else text + ".md"
        yield Reference(kind, path_key(os.path.join(_folder(text, place), path.lstrip("/"))), name_key(text))
        return
    yield Reference(kind, name_key(text), slug(text.removesuffix(".md")))


def linked(destination: str, place: Place) -> Iterator[Reference]:
    """Yield the reference of a Markdown link to a note, relative to the linking note or to its root."""
    path = urllib.parse.unquote(destination.partition("#")[0].partition("?")[0]).strip()
    if SCHEME.match(path) or path.startswith(("//", "www.")) or not path.lower().endswith(".md"):
        return
    yield Reference("LINKS_TO", path_key(os.path.join(_folder(path, place), path.lstrip("/"))))


def _folder(path: str, place: Place) -> str:
    """Return the base folder of a path in a note."""
    return place.root if path.startswith("/") else os.path.join(place.root, os.path.dirname(place.path))


def _without_comments(text: str) -> str:
    """Return a text without its HTML comments. One that is never closed is none."""
    kept: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        kept += (text[at:start], " ")
        at = end + 3
    return "".join((*kept, text[at:]))


def tag_comments(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each `<!-- tags: … -->` of `text` as (start, end, content).  One not closed before the next is ignored."""
    for match in _TAG_COMMENT.finditer(text):
        yield match.start(), match.end(), match[1]


def entries(content: str) -> list[str]:
    """Split a tag comment at commas outside brackets; between two bracketed entries the comma is optional."""
    content = _BETWEEN_RELATIONS.sub("], [", content)
    found, depth, start = [], 0, 0
    for position, character in enumerate(content):
        if character == "[":
            depth += 1
        elif character == "]":
            depth = max(0, depth - 1)
        elif character == "," and not depth:
            found.append(content[start:position])
            start = position + 1
    # An unclosed bracket does not protect commas.
    found += content[start:].split(",") if depth else [content[start:]]
    return [entry for entry in (" ".join(entry.split()) for entry in found) if entry]


def without_code(body: str, code: Sequence[tuple[int, int]]) -> str:
    """Replace code blocks and code spans with spaces, keeping all offsets."""
    if code:
        lines = body.split("\n")
        for first, end in code:
            lines[first:end] = [" " * len(line) for line in lines[first:end]]
        body = "\n".join(lines)
    runs = [match.span() for match in _BACKTICKS.finditer(body)]
    paragraphs = [match.start() for match in _BLANK_LINE.finditer(body)] if runs else []
    # A span ends at the next run of equally many backticks in its paragraph.
    following: dict[tuple[int, int], int] = {}
    closing: dict[int, int | None] = {}
    for index, (start, end) in reversed(list(enumerate(runs))):
        kind = bisect_right(paragraphs, start), end - start
        closing[index] = following.get(kind)
        following[kind] = index
    kept: list[str] = []
    position = index = 0
    while index < len(runs):
        partner = closing[index]
        if partner is not None:
            start, end = runs[index][0], runs[partner][1]
            kept += (body[position:start], re.sub(r"[^\n]", " ", body[start:end]))
            position, index = end, partner
        index += 1
    return "".join((*kept, body[position:]))
