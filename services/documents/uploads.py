"""Uploads: contents that another service sends in pieces.  They are stored when the upload is committed.

State is kept in memory and in unreferenced chunks. If this service dies, the upload is lost; the sender gets an error
and starts over.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.documents import change as ops
from proto.ops.documents.reading import pairs
from services.documents import change_operations
from services.documents.add.intake import Progress, ReadDocument
from services.documents.components import Components, OperationGroup
from services.documents.store.incoming import Incoming
from services.documents.store.rows import DocumentAttributes
from services.runtime.handlers import Context, handles

MAX_PIECE_BYTES = 1024 * 1024
MAX_UPLOADS = 64
FORGET_AFTER_S = 3600.0
FINISHED_KEPT = 64


@dataclass(slots=True)
class _Upload:
    begun: ops.DocumentsPutBegin
    incoming: Incoming
    touched: float
    turn: trio.Lock = field(default_factory=trio.Lock)


class Uploads(OperationGroup):
    def __init__(self, components: Components) -> None:
        super().__init__(components)
        self._adding = components.adding
        self._uploads: dict[str, _Upload] = {}
        self._finished: dict[str, ops.AddResult] = {}

    @handles(ops.DocumentsPutBegin)
    async def begin(self, params: ops.DocumentsPutBegin, ctx: Context) -> ops.UploadBegun:
        before = trio.current_time() - FORGET_AFTER_S
        for id_ in [id_ for id_, upload in self._uploads.items() if upload.touched < before]:
            self._forget(id_)
        if len(self._uploads) >= MAX_UPLOADS:
            raise OperationError(f"{MAX_UPLOADS} uploads are already in progress; commit or abandon one")
        pairs(params.metadata)
        id_ = secrets.token_hex(16)
        self._adding.receiving += 1
        self._uploads[id_] = _Upload(params, Incoming(self._adding.codec), trio.current_time())
        return ops.UploadBegun(upload_id=id_)

    @handles(ops.DocumentsPutPiece)
    async def piece(self, params: ops.DocumentsPutPiece, ctx: Context) -> ops.UploadProgress:
        if len(params.data) > MAX_PIECE_BYTES:
            raise InvalidParams(f"parameter `data` has more than {MAX_PIECE_BYTES} bytes", field="data")
        upload = self._find(params.upload_id)
        async with upload.turn:
            upload.touched = trio.current_time()
            incoming = upload.incoming
            if params.offset + len(params.data) <= incoming.size:
                # A repeated piece.
                return ops.UploadProgress(received=incoming.size)
            if params.offset != incoming.size:
                raise InvalidParams(
                    f"parameter `offset` is {params.offset}, but should be {incoming.size}", field="offset"
                )
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(incoming.feed, params.data)
                if incoming.full:
                    await self._adding.store.write(incoming.settle)
            return ops.UploadProgress(received=incoming.size)

    @handles(ops.DocumentsPutCommit)
    async def commit(self, params: ops.DocumentsPutCommit, ctx: Context) -> ops.AddResult:
        if params.upload_id in self._finished:
            return self._finished[params.upload_id]
        upload = self._find(params.upload_id)
        async with upload.turn:
            if params.upload_id in self._finished:
                return self._finished[params.upload_id]
            incoming = upload.incoming
            if incoming.size != params.size:
                raise OperationError(f"received {incoming.size} bytes, but `size` is {params.size}")
            if params.sha256 is not None and incoming.digest.hex() != params.sha256.lower():
                self._forget(params.upload_id)
                raise OperationError(f"the content's hash is {incoming.digest.hex()}, not {params.sha256.lower()}")
            with trio.CancelScope(shield=True):
                answer, progress = await self._written(upload, params, ctx.session)
            self._finished[params.upload_id] = answer
            while len(self._finished) > FINISHED_KEPT:
                del self._finished[next(iter(self._finished))]
            self._forget(params.upload_id)
        return await self._components.added(answer, progress)

    async def _written(
        self, upload: _Upload, params: ops.DocumentsPutCommit, client: str
    ) -> tuple[ops.AddResult, Progress]:
        begun = upload.begun
        name, mime = params.name or begun.name, params.mimeType or begun.mimeType
        session = await change_operations.session_to_add(self._adding.store, begun.session, client)
        metadata = pairs(begun.metadata) | pairs(params.metadata)
        content = await self._adding.whole(upload.incoming, iter(()), name or begun.path, mime)
        given = DocumentAttributes(tuple(begun.tags), metadata, begun.collection, mime, session)
        return await self._adding.write(ReadDocument(begun.path, "", time.time_ns(), 0, content, name), given)

    @handles(ops.DocumentsPutAbandon)
    async def abandon(self, params: ops.DocumentsPutAbandon, ctx: Context) -> ops.UploadAbandoned:
        return ops.UploadAbandoned(was_there=self._forget(params.upload_id))

    def _forget(self, id_: str) -> bool:
        """Forget an upload.  Returns whether it existed."""
        upload = self._uploads.pop(id_, None)
        if upload is not None:
            self._adding.receiving -= 1
        return upload is not None

    def _find(self, id_: str) -> _Upload:
        upload = self._uploads.get(id_)
        if upload is None:
            raise OperationError("unknown or expired upload; begin a new one", field="upload_id")
        return upload
