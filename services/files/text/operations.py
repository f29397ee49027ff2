"""The operations of `services.files.operations.text`."""

from __future__ import annotations

import contextlib
import os

import msgspec
import trio
from msgspec import structs

from proto.errors import InvalidParams, OperationError
from proto.wire.frames import Written
from services.files import paths
from services.files.changes.writing import Writing
from services.files.core import Core, Family
from services.files.operations import text as ops
from services.files.query import named
from services.files.text import large
from services.files.text.differing import difference
from services.files.text.editing import edited, part
from services.files.text.extracting import extracted, is_document, original
from services.files.text.folder import listed
from services.files.text.grep import Grep
from services.runtime.handlers import Context, handles
from services.runtime.rewrite import (
    MAX_BYTES,
    Rewritten,
    bounded,
    check_match,
    content_hash,
    naming_errors,
    read_whole,
)
from services.runtime.roots import OutsideRoots
from services.shared.text.lines import shortly
from services.shared.text.texts import Text, codec, decode, like, unencodable


class TextTools(Family):
    """Tools that read and change text files."""

    def __init__(self, core: Core, writing: Writing) -> None:
        super().__init__(core)
        self._writing = writing
        # Each call may hold a 64 MiB file several times over.
        self._few = trio.CapacityLimiter(3)

    @handles(ops.GrepFiles)
    async def grep_files(self, params: ops.GrepFiles, ctx: Context) -> Written:
        # Encoded here: decoding and re-encoding a hundred thousand lines on the way would take ten times as long as
        # this.
        return Written(msgspec.json.encode(await Grep(self._core, params, ctx).run()))

    @handles(ops.ReadFile)
    async def read_file(self, params: ops.ReadFile, ctx: Context) -> ops.FileText:
        def read() -> ops.FileText | bytes:
            roots = self._core.roots.all
            with naming_errors(params.path, roots=roots):
                real = paths.to_os(self._real(params.path))
                try:
                    descriptor, status = roots.open(real)
                except OutsideRoots:
                    if not os.path.isdir(real):
                        raise
                    return listed(roots, real, params)
                with open(descriptor, "rb", buffering=0) as file:
                    if status.st_size > MAX_BYTES:
                        return large.read(file, params)
                    data = bounded(file, status.st_size, MAX_BYTES)
            if params.original:
                return original(data, params.offset)
            if not params.encoding and is_document(data, params.path):
                return data
            return part(data, decode(data, params.path, params.encoding), params.lines)

        found = await trio.to_thread.run_sync(read, limiter=self._few)
        if isinstance(found, ops.FileText):
            return found
        text, problem = await extracted(found, params.path, ctx)
        answer = await trio.to_thread.run_sync(part, found, text, params.lines)
        return structs.replace(answer, source=ops.FileSource.EXTRACTED, problem=problem)

    @handles(ops.DiffFiles)
    async def diff(self, params: ops.DiffFiles, ctx: Context) -> ops.FileDiff:
        return await difference(params, self._core.roots, ctx, self._few)

    @handles(ops.EditFile)
    async def edit_file(self, params: ops.EditFile, ctx: Context) -> ops.Edited:
        return await trio.to_thread.run_sync(self._edit, params, limiter=self._few)

    def _edit(self, params: ops.EditFile) -> ops.Edited:
        before: Text | None = None
        after, places = "", 0

        def change(data: bytes) -> bytes:
            nonlocal before, after, places
            before = decode(data, params.path, params.encoding)
            if params.encoding and before.encode(before.text) != data:
                raise InvalidParams(
                    f"`encoding`: saving the file as {params.encoding} would change bytes outside the edit; use an"
                    " encoding with a single form for each text, such as utf-16-le",
                    field="encoding",
                )
            after, places = edited(before.text, [_normal(edit, before) for edit in params.edits])
            try:
                return before.encode(after)
            except UnicodeEncodeError as error:
                raise unencodable("edits", error, before) from None

        def answer(done: Rewritten, _: int | None = None) -> ops.Edited:
            assert before is not None
            path = paths.to_text(done.path)
            return ops.Edited(
                path=path, diff=shortly(before.text, after, path), hash=content_hash(done.after),
                changed=done.after != done.before, replaced=places, links_left=_left(done), dry_run=params.dry_run,
            )  # fmt: skip

        with naming_errors(params.path, roots=self._core.roots.all):
            done, _ = self._writing.rewrite(
                self._real(params.path), change, if_match=params.if_match, dry_run=params.dry_run, answer=answer
            )
        self._notify(paths.to_text(done.path))
        return answer(done)

    @handles(ops.WriteFile)
    async def write_file(self, params: ops.WriteFile, ctx: Context) -> ops.Written:
        return await trio.to_thread.run_sync(self._write, params, limiter=self._few)

    def _write(self, params: ops.WriteFile) -> ops.Written:
        with naming_errors(params.path, roots=self._core.roots.all):
            path = self._real(params.path)
            if not os.path.lexists(paths.to_os(path)):
                check_match(b"", params.if_match)
                content = _encoded(params)
                created = ops.Written(path=path, hash=content_hash(content), bytes=len(content), created=True)
                with contextlib.suppress(FileExistsError):
                    self._writing.create(path, content, lambda: created)
                    self._notify(path)
                    return created
            return self._replace(path, params)

    def _replace(self, path: str, params: ops.WriteFile) -> ops.Written:
        if os.path.isdir(paths.to_os(path)):
            raise OperationError(f"`path`: {paths.shown(path)} is a directory", field="path")
        keep = self._core.settings.trash
        before = read_whole(paths.to_os(path), self._core.roots.all)
        content, kept = _like(before, params)
        written = ops.Written(path=path, hash=content_hash(content), bytes=len(content), kept=kept)
        if before == content:
            # This is also the result when a call is retried after a crash.
            return structs.replace(written, changed=False)
        if params.if_match is None and not params.overwrite:
            raise OperationError(
                f"`path`: {paths.shown(path)} exists; set `overwrite`, or `if_match` to its hash, to replace it, or use"
                " files_edit to change parts of it",
                field="path",
            )

        def change(data: bytes) -> bytes:
            nonlocal written
            # It may have been written since.
            content, kept = _like(data, params)
            written = structs.replace(written, hash=content_hash(content), bytes=len(content), kept=kept)
            return content

        def answer(done: Rewritten, trash_id: int | None) -> ops.Written:
            changed = done.after != done.before
            return structs.replace(
                written, changed=changed, trash_id=trash_id, permanent=changed and not keep, links_left=_left(done)
            )

        done, trash_id = self._writing.rewrite(path, change, if_match=params.if_match, keep=keep, answer=answer)
        self._notify(path)
        return answer(done, trash_id)

    def _real(self, path: str) -> str:
        """Return the real path. Raises InvalidParams or Denied."""
        return self._core.roots.real(self._core.roots.clean(path, "path"), "path")

    def _notify(self, path: str) -> None:
        trio.from_thread.run_sync(named.notify, self._core.env, f"nodes{path}")


def _left(done: Rewritten) -> int:
    """Return how many other hard links still have the file's former content."""
    return done.links - 1 if done.after != done.before else 0


def _encoded(params: ops.WriteFile) -> bytes:
    """Return the content in the encoding that was asked for. Raises InvalidParams."""
    try:
        return params.content.encode(codec(params.encoding or "utf-8"))
    except UnicodeEncodeError as error:
        if not params.encoding:
            raise InvalidParams("`content` is not valid Unicode", field="content") from None
        what = f"{error.object[error.start]!r} cannot be encoded in {params.encoding}"
        raise InvalidParams(f"`content`: {what}", field="content") from None


def _like(data: bytes, params: ops.WriteFile) -> tuple[bytes, str]:
    """Return the content in the form of the file that it replaces, and what of this form is not usual."""
    plain = _encoded(params)
    return (plain, "") if params.encoding or data == plain else like(data, params.content, params.path)


def _normal(edit: ops.FileEdit, text: Text) -> ops.FileEdit:
    """Convert an edit to plain line feeds if the file's lines end in carriage return and line feed."""
    if text.line_ends != "crlf":
        return edit
    return structs.replace(edit, old=edit.old.replace("\r\n", "\n"), new=edit.new.replace("\r\n", "\n"))
