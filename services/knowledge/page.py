"""What the page shows of notes: folders and lists, a note with everything around it, and the graph of all notes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

import apsw
import trio
from msgspec import structs

from proto.errors import InvalidParams, OperationError
from services.knowledge import edges, nodes
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.ingest.ingest_waits import NoteLookup
from services.knowledge.nodes import IndexedNote
from services.knowledge.notes import files, frontmatter, headings
from services.knowledge.notes.files import Place
from services.knowledge.notes.links import (
    DEFINITION,
    FRAGMENT,
    SCHEME,
    Reference,
    clean_tags,
    in_properties,
    linked,
    named,
    pointers,
    without_code,
)
from services.knowledge.notes.properties import ATTRIBUTE, DESTINATION, WIKILINK
from services.knowledge.operations import page as ops
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.runtime.rewrite import content_hash
from services.runtime.roots import Denied, OutsideRoots, Roots
from services.shared.date_ranges import rfc3339

_MAX_LINKS = 5000
"""Links of a note that are shown; a note with more is generated."""

_TAGGED = (
    "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = :tag OR substr(value, 1, length(:tag) + 1) = :tag || '/')"
)
_UNLINKED = "NOT EXISTS (SELECT 1 FROM edge WHERE dst = node.id AND src <> node.id)"


class _Written(NamedTuple):
    """A link as it is written, and what it may mean."""

    written: str
    line: int
    references: tuple[Reference, ...]
    file: str


class PageOperations:
    """The operations."""

    def __init__(self, database: Database, ingest: Ingest, lookup: NoteLookup) -> None:
        self._database = database
        self._ingest = ingest
        self._lookup = lookup
        self._reading = trio.CapacityLimiter(4)

    @handles(ops.BrowseNotes)
    async def browse(self, params: ops.BrowseNotes, ctx: Context) -> ops.Browsed:
        roots = tuple(self._ingest.roots)
        folder = params.folder.rstrip("/")
        if not folder and len(roots) == 1:
            folder = roots[0]
        root = next((each for each in roots if folder == each or folder.startswith(each.rstrip("/") + "/")), None)
        if folder and root is None:
            there = ", ".join(roots) or "no roots are configured"
            raise InvalidParams(f"parameter `folder`: {folder[:200]} is outside the roots: {there}", field="folder")
        place = Place(root or "", folder[len(root) :].strip("/") if root else "")
        return await self._database.read(lambda db: _browsed(db, place, roots, params))

    @handles(ops.MapNotes)
    async def map(self, params: ops.MapNotes, ctx: Context) -> ops.NoteMap:
        return await self._database.read(lambda db: _mapped(db, params.limit))

    @handles(ops.ShowNote)
    async def show(self, params: ops.ShowNote, ctx: Context) -> ops.Shown:
        node = await self._lookup.require(params.id)
        place, roots = node.place, self._ingest.roots
        if params.text is None:
            try:
                content = await trio.to_thread.run_sync(files.read, place.absolute, roots, limiter=self._reading)
            except (FileNotFoundError, NotADirectoryError):
                raise OperationError(f"File not found: {place.path}", field="id") from None
            except Denied:
                raise
            except (OSError, OutsideRoots, files.TooLarge) as error:
                raise OperationError(f"File cannot be read: {place.path}: {files.why(error)}", field="id") from None
            text, hash_ = content.text, content_hash(content.data)
        else:
            text, hash_ = params.text, ""
        shown, written = await trio.to_thread.run_sync(_parsed, text, node, roots, limiter=self._reading)
        links, into, count = await self._database.read(lambda db: _around(db, node, written, params.backlinks))
        return structs.replace(
            shown, text=text if params.text is None else "", hash=hash_, links=links, backlinks=into,
            backlink_count=count,
        )  # fmt: skip


def _browsed(db: apsw.Connection, place: Place, roots: Sequence[str], params: ops.BrowseNotes) -> ops.Browsed:
    conditions: list[str] = []
    below = f"{place.path}/" if place.path else ""
    if place.root:
        conditions.append("root = :root")
    if below:
        # "0" follows "/", so that the index of paths is used.
        conditions.append("path > :below AND path < :end")
    words = params.words.casefold().split()
    tag = next(iter(clean_tags([params.tag])), "")
    if tag:
        conditions.append(_TAGGED)
    if params.unlinked:
        conditions.append(_UNLINKED)
    given = {"root": place.root, "below": below, "end": f"{below[:-1]}0", "tag": tag}
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "date DESC, path, root" if params.latest else "path, root"
    rows = db.execute(f"SELECT id, root, path, title, date FROM node {where} ORDER BY {order}", given)
    found: list[tuple[str, str, str, str, float | None]] = []
    folders: Counter[str] = Counter()
    is_list = bool(params.below or words or tag or params.unlinked)
    for row in rows:
        id_, root, path, title, _ = row
        if words:
            name = f"{title}\n{path}\n{id_}".casefold()
            if not all(word in name for word in words):
                continue
        if not is_list:
            if not place.root:
                folders[root] += 1
                continue
            inner, slash, _ = path[len(below) :].partition("/")
            if slash:
                folders[os.path.join(place.root, below, inner)] += 1
                continue
        found.append(row)
    if not is_list and not place.root:
        folders.update(dict.fromkeys(roots, 0))
    some = found[params.offset : params.offset + params.limit]
    return ops.Browsed(
        folders=[
            ops.Folder(path=path, name=os.path.basename(path) if place.root else path, notes=notes)
            for path, notes in sorted(folders.items())
        ]
        if not params.offset
        else [],
        notes=[
            ops.Listed(id=id_, title=title or id_, path=path, date=rfc3339(date)) for id_, _, path, title, date in some
        ],
        count=len(found),
    )


def _mapped(db: apsw.Connection, limit: int) -> ops.NoteMap:
    count = nodes.count(db)
    ids: dict[str, int] = {}
    titles: list[str] = []
    folders: dict[str, int] = {}
    folder: list[int] = []
    tags: list[list[str]] = []
    for id_, path, title, tagged in db.execute("SELECT id, path, title, tags FROM node ORDER BY id LIMIT ?", (limit,)):
        ids[id_] = len(ids)
        titles.append(title or id_)
        folder.append(folders.setdefault(path[: path.rfind("/") + 1], len(folders)))
        tags.append(json.loads(tagged) if tagged != "[]" else [])
    frequent = [tag for tag, _ in Counter(tag for each in tags for tag in each).most_common()]
    places = {tag: place for place, tag in enumerate(frequent)}
    pairs = {
        (min(one, other), max(one, other))
        for src, dst in db.execute("SELECT src, dst FROM edge WHERE dst IS NOT NULL")
        if (one := ids.get(src)) is not None and (other := ids.get(dst)) is not None and one != other
    }
    return ops.NoteMap(
        ids=list(ids), titles=titles, folders=list(folders), folder=folder, tags=frequent,
        tagged=[[places[tag] for tag in each] for each in tags],
        edges=[end for pair in sorted(pairs) for end in pair], more=max(0, count - len(ids)),
    )  # fmt: skip


def _parsed(text: str, node: IndexedNote, roots: Roots) -> tuple[ops.Shown, list[_Written]]:
    """Return a note without its links, and its links with what they may mean.  Blocks on the disk."""
    front, body = frontmatter.split(frontmatter.normal(text))
    plan = headings.outlined(body)
    _, tags = pointers(body, plan.code, front, node.place)
    written: dict[tuple[str, str], _Written] = {}
    for reference in in_properties(front, node.place):
        relation = reference.kind if reference.kind not in ("CITES", "LINKS_TO") else ""
        written.setdefault((reference.written, relation), _Written(reference.written, 0, (reference,), ""))
    seen = without_code(body, plan.code)
    found = [(match.start(), match[1], True) for match in WIKILINK.finditer(seen)]
    for pattern in (DESTINATION, DEFINITION, ATTRIBUTE):
        for match in pattern.finditer(seen):
            found.append((match.start(), next(filter(None, match.groups()), ""), False))
    for at, inside, is_name in sorted(found)[:_MAX_LINKS]:
        is_elsewhere = not is_name and (SCHEME.match(inside) or inside.startswith("//"))
        if (inside, "") in written or is_elsewhere or inside.startswith("#"):
            continue
        line = front.lines + 1 + seen.count("\n", 0, at)
        references = tuple(named("CITES", inside, node.place) if is_name else linked(inside, node.place))
        file = _file(inside, is_name, node.place, roots)
        written[inside, ""] = _Written(inside, line, references, file)
    return (
        ops.Shown(
            id=node.id, title=node.title or node.id, path=node.place.path, file=node.place.absolute, start=front.lines,
            problem=front.problem or "", tags=list(tags),
            properties=[ops.Property(name, values) for name, values in front.values.items()],
            headings=[ops.Heading(each.level, each.title, each.first + front.lines + 1) for each in headings.of(body)],
        ),
        list(written.values()),
    )  # fmt: skip


def _file(inside: str, is_name: bool, place: Place, roots: Roots) -> str:
    """Return the absolute path of another file that a link means: beside the note, or below its root.

    Like a note's, its path may begin at the root.
    """
    name = inside.rstrip("\\") if is_name else unquote(inside.partition("#")[0].partition("?")[0])
    if is_name and (fragment := FRAGMENT.search(name)):
        name = name[: fragment.start()]
    name = name.strip()
    if not name or name.lower().endswith(".md") or "\0" in name:
        return ""
    for folder in (os.path.dirname(place.absolute), place.root):
        path = os.path.normpath(os.path.join(folder, name.lstrip("/")))
        real = os.path.realpath(path)
        if roots.holds(real) and os.path.isfile(real) and not roots.refusal(real):
            return real
    return ""


def _around(
    db: apsw.Connection, node: IndexedNote, written: Iterable[_Written], limit: int
) -> tuple[list[ops.ShownLink], list[ops.Linking], int]:
    """Return a note's links, the first `limit` notes that link to it, and the number of these."""
    finder = edges.Finder(edges.having(db))
    titles: dict[str, str] = {}

    def title(id_: str) -> str:
        if id_ not in titles:
            titles[id_] = db.execute("SELECT title FROM node WHERE id=?", (id_,)).get or ""
        return titles[id_]

    links: list[ops.ShownLink] = []
    for each in written:
        id_, relation = "", ""
        for reference in each.references:
            id_ = id_ or finder.target(reference.key, reference.other_key, node.place) or ""
            relation = reference.kind if reference.kind not in ("CITES", "LINKS_TO") else ""
        name = title(id_) if id_ else ""
        links.append(
            ops.ShownLink(
                written=each.written, id=id_, title=name, file="" if id_ else each.file, relation=relation,
                line=each.line,
            )
        )  # fmt: skip
    into = "SELECT DISTINCT src FROM edge WHERE dst = ?1 AND src <> ?1"
    listed = db.execute(
        f"SELECT node.id, title FROM node WHERE id IN ({into}) ORDER BY title, id LIMIT ?2", (node.id, limit)
    )
    backlinks = [ops.Linking(id_, name or id_) for id_, name in listed]
    count = int(db.execute(f"SELECT count(*) FROM node WHERE id IN ({into})", (node.id,)).get)
    return links, backlinks, count
