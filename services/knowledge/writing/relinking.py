"""Find the links in a note's text, and rewrite them after a note has moved.

Wikilinks and names in the front matter's relations refer by name, Markdown links and reference definitions by path.
Links are found in the text and in every property. Links in code are examples and are not changed.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from services.knowledge.notes import frontmatter, links
from services.knowledge.notes.files import Place
from services.knowledge.notes.properties import ATTRIBUTE, DESTINATION, WIKILINK, encoded, property_links
from services.knowledge.writing.editing import MARK, flat
from services.shared.text.markdown import outline

_PLAIN_YAML = re.compile(r"[^\W\d_][\w ./-]*(?<! )")
_ENCODED = re.compile(r"[\s()<>%#?\\\[\]]")
_UNENCLOSED = re.compile(r"[<>\\\n#?%]")
UNNAMEABLE = re.compile(r"[\[\]|#^\"\\<>\x00-\x1f\x7f]")
"""Characters in a file name that a wikilink cannot contain."""


class Token(NamedTuple):
    """The target of a link in a text, without alias, heading and query."""

    start: int
    end: int
    written: str
    is_path: bool
    style: str | None = None
    """The quotes around it in the front matter, empty if unquoted; None outside the front matter."""
    is_scalar: bool = False
    """Whether it is a whole scalar of the front matter, including quotes."""


@dataclass(slots=True)
class Changed:
    """Links to rewrite in one file, as old to new text; `files` are those of a canvas's cards; `stuck` if one cannot be
    written."""

    names: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    stuck: bool = False

    @property
    def chained(self) -> bool:
        """Whether a new text equals another old one, so that rewriting is not idempotent."""
        return any(new in each for each in (self.names, self.paths, self.files) for new in each.values())


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a note.

    `moving` maps each note (by its current place) to the keys of references whose target would change, with the names
    that will lead to the same note, shortest first.
    """

    old: Place
    new: Place
    moving: Mapping[Place, Mapping[tuple[str, str], Sequence[str]]]


def tokens(text: str) -> Iterator[Token]:
    """Yield the links in a note's text, in no particular order."""
    mark = len(text) - len(text.removeprefix(MARK))
    even = flat(text)[mark:]
    front, body = frontmatter.split(even)
    start = len(text) - len(body)
    seen = links.without_code(body, outline(body).code)
    for match in WIKILINK.finditer(seen):
        yield _named(match[1], range(match.start(1) + start, match.end(1) + start + 1))
    for pattern in (DESTINATION, links.DEFINITION, ATTRIBUTE):
        for match in pattern.finditer(seen):
            group = 2 if match[1] is None else 1
            yield _pathed(match[group], range(match.start(group) + start, match.end(group) + start + 1))
    covered: set[int] = set()
    for link in property_links(front):
        covered.update(link.offsets)
        offsets = [at + mark for at in link.offsets]
        yield (_pathed if link.is_path else _named)(link.inside, offsets, link.style)
    for scalar in front.scalars:
        if scalar.key in links.FRONT_MATTER_RELATIONS and covered.isdisjoint(range(scalar.start, scalar.end)):
            yield Token(scalar.start + mark, scalar.end + mark, scalar.value, is_path=False, is_scalar=True)


def _named(inside: str, offsets: Sequence[int], style: str | None = None) -> Token:
    heading = links.FRAGMENT.search(inside)
    name = inside[: heading.start()] if heading else inside
    start = len(name) - len(name.lstrip())
    name = name.strip().rstrip("\\")
    return Token(offsets[start], offsets[start + len(name)], name, is_path=False, style=style)


def _pathed(inside: str, offsets: Sequence[int], style: str | None = None) -> Token:
    path = re.split("[#?]", inside, maxsplit=1)[0]
    return Token(offsets[0], offsets[len(path)], path, is_path=True, style=style)


def relinked(text: str, names: Mapping[str, str], paths: Mapping[str, str]) -> tuple[str, int]:
    """Rewrite links in a text.  Returns the new text and the number of changes."""
    parts: list[str] = []
    position = count = 0
    for token in sorted(set(tokens(text))):
        new = (paths if token.is_path else names).get(token.written)
        if new is None or new == token.written or token.start < position:
            continue
        replacement = _fitting(new, token, text)
        if replacement is None:
            continue
        parts += (text[position : token.start], replacement)
        position = token.end
        count += 1
    return "".join((*parts, text[position:])), count


def _fitting(new: str, token: Token, text: str) -> str | None:
    """Encode a name or path to replace a token; None if that is impossible."""
    if token.is_scalar:
        return _as_yaml(new, text[token.start])
    if token.is_path and text[token.start - 1 : token.start] == "<" and not _UNENCLOSED.search(plain := unquote(new)):
        # In angle brackets, a path may have spaces.
        return plain
    return new if token.style is None else encoded(new, token.style)


def _as_yaml(name: str, first: str) -> str:
    """Quote a name if the old scalar, which begins with `first`, was quoted, or if necessary."""
    is_plain = first not in "\"'" and _PLAIN_YAML.fullmatch(name)
    return name if is_plain else json.dumps(name, ensure_ascii=False)


def changed(text: str, place: Place, move: Move) -> Changed:
    """Return the links in the note at `place` that have to be rewritten after the move."""
    found = Changed()
    own = place == move.old
    folder = os.path.dirname((move.new if own else place).absolute)
    moving = move.moving.get(place, {})
    for token in set(tokens(text)):
        written = token.written
        new: str | None = None
        if token.is_path or written.startswith(("./", "../", "/")):
            new = _path(written, place, folder, move, is_path=token.is_path)
        if new is None and not token.is_path:
            reference = next(links.named("", written, place), None)
            if reference is not None and (names := moving.get((reference.key, reference.other_key))) is not None:
                new = _name(written, names)
                found.stuck |= new is None
        if new is not None and new != written:
            (found.paths if token.is_path else found.names)[written] = new
            found.stuck |= _fitting(new, token, text) is None
    return found


def _name(written: str, names: Sequence[str]) -> str | None:
    """Choose the name with as many folders as before, or as many as needed, or a relative path if no name works."""
    folders = written.strip("/").count("/")
    plain = [name for name in names if not name.startswith(("./", "../"))] or names
    new = next((name for name in plain if name.count("/") >= folders), next(reversed(plain), None))
    return new if new is None or not written.lower().endswith(".md") else f"{new}.md"


def _path(written: str, place: Place, folder: str, move: Move, *, is_path: bool) -> str | None:
    """Return the new text of a path, relative to `folder`; None if it does not change."""
    if not written or links.SCHEME.match(written) or written.startswith("//"):
        return None
    from_root = written.startswith("/")
    plain = urllib.parse.unquote(written) if is_path else written
    bare = not is_path and not plain.lower().endswith(".md")
    above = place.root if from_root else os.path.dirname(place.absolute)
    target = os.path.normpath(os.path.join(above, plain.lstrip("/") + (".md" if bare else "")))
    leads_there = links.path_key(target) == links.path_key(move.old.absolute)
    if leads_there:
        target = move.new.absolute
    elif place != move.old or from_root or os.path.dirname(place.absolute) == folder:
        return None
    if from_root and move.new.root == place.root:
        new = "/" + move.new.path
    else:
        new = os.path.relpath(target, folder) + ("/" if written.endswith("/") else "")
        if written.startswith("./") and not new.startswith("../"):
            new = f"./{new}"
    if not is_path:
        new = new if from_root or new.startswith("../") else f"./{new.removeprefix('./')}"
        return new.removesuffix(".md") if bare else new
    return _ENCODED.sub(lambda found: urllib.parse.quote(found[0], safe=""), new)
