"""Contents that another service sends in pieces: nothing is there until the upload is committed.

Kept in memory and in chunks that belong to nothing, so the death of this service forgets an upload; the sender is told,
and begins again.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

import trio

from linckia.proto.errors import InvalidParams, OperationError
from linckia.proto.ops.documents import change as ops
from linckia.proto.ops.documents.reading import pairs
from linckia.services.documents import changing
from linckia.services.documents.add.intake import Progress, Taken
from linckia.services.documents.parts import Family, Parts
from linckia.services.documents.store.incoming import Incoming
from linckia.services.documents.store.rows import Given
from linckia.services.runtime.handlers import Context, handles

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


class Uploads(Family):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._adding = parts.adding
        self._uploads: dict[str, _Upload] = {}
        self._finished: dict[str, ops.AddResult] = {}

    @handles(ops.DocumentsPutBegin)
    async def begin(self, params: ops.DocumentsPutBegin, ctx: Context) -> ops.UploadBegun:
        before = trio.current_time() - FORGET_AFTER_S
        for id_ in [id_ for id_, upload in self._uploads.items() if upload.touched < before]:
            self._forget(id_)
        if len(self._uploads) >= MAX_UPLOADS:
            raise OperationError(f"{MAX_UPLOADS} uploads are under way already")
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
                # It has come before.
                return ops.UploadProgress(received=incoming.size)
            if params.offset != incoming.size:
                raise InvalidParams(
                    f"parameter `offset` is {params.offset}, and {incoming.size} bytes have come", field="offset"
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
                raise OperationError(f"{incoming.size} bytes have come, and {params.size} were sent")
            if params.sha256 is not None and incoming.digest.hex() != params.sha256.lower():
                self._forget(params.upload_id)
                raise OperationError(f"the content hashes to {incoming.digest.hex()}, not to {params.sha256.lower()}")
            with trio.CancelScope(shield=True):
                answer, progress = await self._written(upload, params, ctx.session)
            self._finished[params.upload_id] = answer
            while len(self._finished) > FINISHED_KEPT:
                del self._finished[next(iter(self._finished))]
            self._forget(params.upload_id)
        return await self._parts.added(answer, progress)

    async def _written(
        self, upload: _Upload, params: ops.DocumentsPutCommit, client: str
    ) -> tuple[ops.AddResult, Progress]:
        begun = upload.begun
        name, mime = params.name or begun.name, params.mimeType or begun.mimeType
        session = await changing.session_to_add(self._adding.store, begun.session, client)
        metadata = pairs(begun.metadata) | pairs(params.metadata)
        content = await self._adding.whole(upload.incoming, iter(()), name or begun.path, mime)
        given = Given(tuple(begun.tags), metadata, begun.collection, mime, session)
        return await self._adding.write(Taken(begun.path, "", time.time_ns(), 0, content, name), given)

    @handles(ops.DocumentsPutAbandon)
    async def abandon(self, params: ops.DocumentsPutAbandon, ctx: Context) -> ops.UploadAbandoned:
        return ops.UploadAbandoned(was_there=self._forget(params.upload_id))

    def _forget(self, id_: str) -> bool:
        """Answers whether there was one."""
        upload = self._uploads.pop(id_, None)
        if upload is not None:
            self._adding.receiving -= 1
        return upload is not None

    def _find(self, id_: str) -> _Upload:
        upload = self._uploads.get(id_)
        if upload is None:
            raise OperationError("this upload is not known (any more): begin again", field="upload_id")
        return upload
