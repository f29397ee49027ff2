"""The operations that write notes.  On return the change is on disk, and normally searchable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import apsw
import trio
from msgspec import structs

from proto.errors import InvalidParams, LinckiaError, OperationError, Unavailable
from proto.ops.yaml import MergeYamlText
from services.knowledge.ingest.ingest import WRITER_PATIENCE_S, Ingest
from services.knowledge.ingest.ingest_waits import NoteLookup
from services.knowledge.nodes import IndexedNote
from services.knowledge.notes import files, markdown, tags
from services.knowledge.notes.files import Place
from services.knowledge.notes.spelling import as_on_disk
from services.knowledge.operations import writing as ops
from services.knowledge.operations.writing import NoteRenamed, NoteWritten
from services.knowledge.writing import canvases, relinking
from services.knowledge.writing.editing import Merge, decoded, edited, with_front_matter
from services.knowledge.writing.relinking import UNNAMEABLE, Move
from services.knowledge.writing.renaming import Journal, Relink, Renaming, plan_move, renamed, renaming_steps
from services.runtime import change_log, keyed
from services.runtime.change_log import Resumed
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, handles
from services.runtime.replace import CannotReplace
from services.runtime.rewrite import (
    Contended,
    Rewritten,
    check_match,
    content_hash,
    create,
    naming_errors,
    read_whole,
    rewrite,
)
from services.runtime.roots import Denied, OutsideRoots, Roots
from services.shared.text.lines import MAX_CHARACTERS, shortly
from services.shared.text.texts import like

_EXISTS = "the note already exists; give `if_match` (its hash is {}) or `overwrite: true`, or use notes_edit"


@dataclass(slots=True)
class _Plan:
    """The plan of a renaming: the text of each file before and after, and the files whose links stay unchanged."""

    renaming: Renaming
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    links: int = 0
    left: list[str] = field(default_factory=list)


class WriteOperations:
    """Writes notes, one at a time."""

    def __init__(self, env: Environment, database: Database, ingest: Ingest, lookup: NoteLookup) -> None:
        self._database = database
        self._ingest = ingest
        self._lookup = lookup
        self._roots = ingest.roots
        self._log = env.changes
        self._journal = Journal(env.data_dir / "renaming.json")
        self.is_whole = trio.Event()
        """Set once an interrupted renaming is finished, so that links and names agree."""
        self._turn = trio.Lock()
        self._writing = trio.CapacityLimiter(1)

    @handles(ops.WriteNote)
    async def write_note(self, params: ops.WriteNote, ctx: Context) -> NoteWritten:
        path = self._target(params.path, "path")
        merge = self._merge(params.front_matter, ctx)

        def work() -> tuple[Rewritten, bool]:
            text = with_front_matter(params.content, merge) if params.front_matter else params.content
            with naming_errors(path, roots=self._roots):
                return _written(path, self._roots, text, params)

        done, is_new = await trio.to_thread.run_sync(work, limiter=self._writing)
        return await self._answer(done, is_new=is_new)

    @handles(ops.EditNote)
    async def edit_note(self, params: ops.EditNote, ctx: Context) -> NoteWritten:
        path = await self._path(params.path, params.id)
        merge = self._merge(params.front_matter, ctx)

        def work() -> Rewritten:
            with naming_errors(path, roots=self._roots):
                return rewrite(
                    path, self._roots, lambda data: _encoded(edited(decoded(data), params, merge)),
                    if_match=params.if_match, dry_run=params.dry_run, answer=_answered,
                )  # fmt: skip

        done = await trio.to_thread.run_sync(work, limiter=self._writing)
        if not params.dry_run:
            return await self._answer(done)
        diff = shortly(decoded(done.before), decoded(done.after), os.path.basename(done.path))
        return NoteWritten(path=done.path, hash=content_hash(done.before), changed=False, diff=diff or "no change")

    @handles(ops.InjectTags)
    async def inject_tags(self, params: ops.InjectTags, ctx: Context) -> ops.InjectTagsResult:
        wanted = tags.checked(params.tags)
        path = files.locate(params.file_path, self._roots, "file_path")

        def answer(tagged: tags.Tagged, changed: bool) -> ops.InjectTagsResult:
            how = "merged" if tagged.merged else "injected"
            return ops.InjectTagsResult(
                message=f"Successfully {how} {len(params.tags)} tags into {params.file_path}",
                tags=list(tagged.entries),
                changed=changed,
            )

        try:
            tagged, done = await trio.to_thread.run_sync(
                tags.add_tags, path, self._roots, wanted, answer, limiter=self._writing
            )
        except (FileNotFoundError, NotADirectoryError):
            near = await trio.to_thread.run_sync(self._roots.similar, path, params.file_path)
            raise OperationError(f"File not found: {params.file_path}{near}") from None
        except Denied:
            raise
        except (OSError, OutsideRoots, files.TooLarge, Contended) as error:
            raise OperationError(f"cannot add tags to {params.file_path}: {files.why(error)}") from None
        changed = done.after != done.before
        if changed:
            await self._ingest.index_now(done.path, files.digest(files.decode(done.after)))
        return answer(tagged, changed)

    @handles(ops.RenameNote, resumes=True)
    async def rename_note(self, params: ops.RenameNote, ctx: Context) -> NoteRenamed:
        if ctx.key:
            # An earlier attempt may just have been finished.
            await self.is_whole.wait()
            await self._database.read(keyed.check)
        node = await self._known(await self._path(params.path, params.id))
        async with self._turn:
            plan = await self._planned(node, self._new_place(node, params.to))
            renaming = plan.renaming
            answer = NoteRenamed(
                path=renaming.target.absolute, former_path=renaming.source.absolute, links=plan.links,
                files=[relink.path for relink in renaming.relinks], left=plan.left,
            )  # fmt: skip
            if params.dry_run:
                return structs.replace(answer, diff=await trio.to_thread.run_sync(_difference, plan.texts))
            who = change_log.who()
            expected = answer if who is None else structs.replace(answer, change=who.change)
            try:
                with trio.CancelScope(shield=True):
                    failed = await self._carry_out(
                        structs.replace(renaming, keyed=keyed.record(expected), who=who), note_down=True
                    )
                    rewritten = [path for path in answer.files if path not in failed]
                    answer = structs.replace(answer, files=rewritten, left=[*plan.left, *failed])
                    if ctx.key:
                        # The journal has it so far, and is removed even if the caller leaves now.
                        await self._database.answer(partial(_constant, answer))
                with trio.move_on_after(WRITER_PATIENCE_S):
                    await self._ingest.follow_renaming(renaming.source, renaming.target)
                    id_ = await self._index_current(answer.path)
                    answer = structs.replace(answer, id=id_, indexed=bool(id_))
                    for path in rewritten:
                        if canvases.is_canvas(path):
                            continue
                        await self._index_current(path)
                return answer
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._journal.clear)

    # Paths and results

    def _target(self, given: str, named: str) -> str:
        """Return the real path of a note, which may not exist.  Raises InvalidParams, Denied, which name the field."""
        path = files.locate(given, self._roots, named)
        real = os.path.realpath(as_on_disk(os.path.realpath(path), self._roots))
        if not self._roots.holds(real) or real in self._roots:
            there = ", ".join(self._roots.reachable) or "no roots are configured"
            raise InvalidParams(f"parameter `{named}`: {given[:200]} is outside the roots: {there}", field=named)
        self._roots.check(real, write=True, field=named)
        return real

    async def _path(self, path: str, id_: str) -> str:
        if not id_:
            return self._target(path, "path")
        real = (await self._lookup.require(id_)).place.absolute
        self._roots.check(real, write=True, field="id")
        return real

    async def _answer(self, done: Rewritten, *, is_new: bool = False) -> NoteWritten:
        id_ = await self._ingest.index_now(done.path, files.digest(files.decode(done.after)))
        return structs.replace(_answered(done, is_new=is_new), id=id_, indexed=bool(id_))

    async def _index_current(self, path: str) -> str:
        """Index a file in its current state.  Returns its id, or an empty string."""
        try:
            content = await trio.to_thread.run_sync(read_whole, path, self._roots, limiter=self._writing)
        except (OSError, OutsideRoots, files.TooLarge):
            return ""
        return await self._ingest.index_now(path, files.digest(files.decode(content)))

    def _merge(self, values: dict[str, object], ctx: Context) -> Merge:
        """Return a function for worker threads that merges `values` into front matter by calling `yaml`."""

        def merge(text: str) -> str:
            try:
                return trio.from_thread.run(ctx.call, MergeYamlText(text=text, values=values))
            except OperationError as error:
                raise OperationError(f"`front_matter`: {error}", field="front_matter") from None

        return merge

    # Renaming

    async def run(self) -> None:
        """Finish an interrupted renaming, and remove the journal once the index is up to date."""
        async with self._turn:
            renaming = await trio.to_thread.run_sync(self._journal.read)
            if renaming is not None:
                if renaming.who is not None and self._log is not None:
                    change_log.current.set(Resumed(self._log, renaming.who))
                # It fails if it had not begun and has become impossible.
                with contextlib.suppress(LinckiaError):
                    await self._carry_out(renaming, note_down=False)
                    if (record := renaming.keyed) is not None:
                        await self._database.write(lambda db: keyed.restore(db, record))
            self.is_whole.set()
            await self._ingest.until(lambda: self._ingest.scanned)
            await trio.to_thread.run_sync(self._journal.clear)

    async def _carry_out(self, renaming: Renaming, *, note_down: bool) -> list[str]:
        """Carry out a renaming.  Returns the files that could not be changed.

        Raises OperationError if the note keeps its name.
        """
        self._ingest.index.renamed = {renaming.target: renaming.source}

        def work() -> list[str]:
            with naming_errors(renaming.target.absolute, "to"):
                if note_down:
                    self._journal.write(renaming)
                try:
                    return [path for path in renaming_steps(renaming, self._roots) if path]
                except FileExistsError:
                    raise OperationError(f"`to`: {renaming.target.absolute} already exists", field="to") from None
                except CannotReplace as error:
                    raise OperationError(f"`to`: {error}", field="to") from None

        return await trio.to_thread.run_sync(work, limiter=self._writing)

    async def _known(self, path: str) -> IndexedNote:
        """Return the note at a path, once everything on disk is indexed, so that every link to it is known."""
        id_ = await self._index_current(path)
        if not id_:
            if behind := self._ingest.degraded():
                raise Unavailable(f"{path} is not indexed yet: {behind[0]}", retry_after_ms=1000)
            said = f"`path`: {path} is not indexed: it is in an ignored folder or cannot be read"
            raise OperationError(said, field="path")
        if not await self._ingest.until(
            lambda: self._ingest.is_listed and not self._ingest.index.pending, WRITER_PATIENCE_S
        ):
            reason = "; ".join(self._ingest.degraded()) or "the folders are being read"
            raise Unavailable(f"not every link to the note is known yet: {reason}", retry_after_ms=1000)
        return await self._lookup.require(id_)

    def _new_place(self, node: IndexedNote, to: str) -> Place:
        """Resolve the new place of a note.  Raises InvalidParams, Denied, or OperationError if it exists."""
        place = renamed(node, to)
        real = self._target(place.absolute, "to")
        if UNNAMEABLE.search(os.path.basename(real)):
            said = f'parameter `to`: a link cannot name a file with one of [ ] | # ^ " \\ < >: {to[:200]!r}'
            raise InvalidParams(said, field="to")
        root = self._roots.root_of(real)
        assert root is not None, "`_target` checks that it is below a root"
        new = Place(root, os.path.relpath(real, root))
        if new == node.place:
            raise InvalidParams(f"parameter `to`: {to[:200]} is already its name", field="to")
        if os.path.lexists(real):
            raise OperationError(f"`to`: {real} already exists and is not overwritten", field="to")
        return new

    async def _planned(self, node: IndexedNote, new: Place) -> _Plan:
        data = await trio.to_thread.run_sync(read_whole, node.place.absolute, self._roots, limiter=self._writing)
        title = markdown.own_title(files.decode(data)) or markdown.stem(new.path)
        seen = await trio.to_thread.run_sync(_canvases, node.place.root, self._roots, limiter=self._writing)
        move, linking = await self._database.read(
            lambda db: plan_move(db, node, new, title, self._roots, seen.references)
        )
        # The file of a card is a path, which the plan does not know.
        linking = [*dict.fromkeys((*linking, *seen.references))]
        return await trio.to_thread.run_sync(_plan, move, linking, seen.unseen, self._roots, limiter=self._writing)


def _constant(answer: NoteRenamed, _: apsw.Connection) -> NoteRenamed:
    return answer


def _answered(done: Rewritten, *, is_new: bool = False) -> NoteWritten:
    """Return the answer for a note that is not indexed yet."""
    return NoteWritten(
        path=done.path, hash=content_hash(done.after), changed=is_new or done.after != done.before,
        previous=None if is_new else content_hash(done.before),
    )  # fmt: skip


def _encoded(text: str) -> bytes:
    """Encode a text.  Raises InvalidParams if it contains a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        said = f"parameter `content`: character {error.start + 1} is a lone surrogate, which is not valid text"
        raise InvalidParams(said, field="content") from None


def _written(path: str, roots: Roots, text: str, params: ops.WriteNote) -> tuple[Rewritten, bool]:
    """Create a note, or replace one in the form that it has.  Also returns whether it is new.  Blocks."""
    data = _encoded(text)
    if not os.path.lexists(path):
        if params.if_match is not None:
            raise OperationError(f"`if_match`: {path} does not exist; omit `if_match` to create it", field="if_match")
        try:
            done = Rewritten(path, b"", data)
            create(path, roots, data, answer=lambda: _answered(done, is_new=True))
            return done, True
        except FileExistsError:
            pass

    def change(before: bytes) -> bytes:
        data, _ = like(before, text, path)
        # Writing the same content again is harmless, for example when a call is repeated after a crash.
        if before != data and not params.overwrite:
            if params.if_match is None:
                raise OperationError(f"`path`: {path}: {_EXISTS.format(content_hash(before))}", field="path")
            check_match(before, params.if_match)
        return data

    return rewrite(path, roots, change, answer=_answered), False


class _Canvases(NamedTuple):
    """The references of canvases, and what could not be looked through."""

    references: dict[Place, frozenset[tuple[str, str]]]
    unseen: list[str]


def _canvases(root: str, roots: Roots) -> _Canvases:
    """Look for the canvases below a root.  Blocks."""
    found, is_all = canvases.find(root, roots)
    seen = _Canvases({}, [] if is_all else [os.path.join(root, f"**/*{canvases.SUFFIX}")])
    for place in found:
        try:
            text = files.decode(read_whole(place.absolute, roots))
            seen.references[place] = frozenset(canvases.references(text, place))
        except (OSError, OutsideRoots, files.TooLarge):
            seen.unseen.append(place.absolute)
    return seen


def _plan(move: Move, linking: Iterable[Place], unseen: Sequence[str], roots: Roots) -> _Plan:
    """Plan the changes in each file.  Blocks."""
    plan = _Plan(Renaming(move.old, move.new, []))
    plan.left += unseen
    for place in (move.old, *linking):
        own = place == move.old
        path = (move.new if own else place).absolute
        try:
            data = read_whole(place.absolute, roots)
            text = files.decode(data)
            look = canvases.changed if canvases.is_canvas(path) else relinking.changed
            changed = look(text, place, move)
            only = content_hash(data) if own or changed.chained else ""
            relink = Relink(path, changed.names, changed.paths, only, changed.files)
            after, count = relink.apply(text)
            if changed.stuck or (count and not _may_write(place, data, roots)):
                plan.left.append(place.absolute)
        except (OSError, OutsideRoots, files.TooLarge):
            count = 0
            plan.left.append(place.absolute)
        if count and _may_write(place, data, roots):
            plan.renaming.relinks.append(relink)
            plan.texts[path] = text, after
            plan.links += count
    return plan


def _difference(texts: Mapping[str, tuple[str, str]]) -> str:
    """Return the diffs of as many files as fit into one result."""
    diffs: list[str] = []
    for path, (before, after) in texts.items():
        diffs.append(shortly(before, after, os.path.basename(path)))
        if sum(map(len, diffs)) > MAX_CHARACTERS:
            break
    more = len(texts) - len(diffs)
    return "".join(diffs) + (f"… and {more} more files\n" if more else "")


def _may_write(place: Place, data: bytes, roots: Roots) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not roots.refusal(place.absolute, write=True) and os.access(place.absolute, os.W_OK)
