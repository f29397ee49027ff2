"""The operator's tokens as a front knows them: the kernel tells of each change, and a request is judged without it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection

import msgspec
import trio

from proto.dispatch import Dispatcher
from proto.errors import LinckiaError
from proto.front import SERVICE
from proto.grants import Token, TokenTable
from proto.operation import operation_of
from proto.ops.kernel import KernelTokens

AGAIN_S = 1.0


class Tokens:
    """Tokens by their hashes; `revoked` is told the hashes of those that are there no more."""

    def __init__(self) -> None:
        self._by_hash: dict[str, Token] = {}
        self.revoked: Callable[[Collection[str]], None] = lambda hashes: None

    def find(self, token: str) -> Token | None:
        """The one that a client sent, unless it has expired."""
        # A look-up by a hash tells no one by its time how near a guess came.
        found = self._by_hash.get(hashlib.sha256(token.encode()).hexdigest())
        if found is None or (found.expires is not None and found.expires <= time.time()):
            return None
        return found

    def replace(self, tokens: Collection[Token]) -> None:
        """These are all."""
        before, self._by_hash = self._by_hash, {token.sha256: token for token in tokens}
        self.revoked(before.keys() - self._by_hash.keys())

    async def follow(
        self, dispatcher: Dispatcher, front: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Know them as they change; `front` is this process's name.  Started once they are known."""
        version = 0
        while True:
            try:
                params = KernelTokens(front=front, version=version)
                answer = await dispatcher.call(operation_of(KernelTokens), params, caller=SERVICE)
            except LinckiaError:
                await trio.sleep(AGAIN_S)
                continue
            table = msgspec.convert(answer, TokenTable)
            if table.version != version:
                version = table.version
                self.replace(table.tokens)
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
