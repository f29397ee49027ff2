"""Has directories compared by the service `compare`, on behalf of scans in their threads.

No scan depends on it: a piece that is not answered in time, or at all, is examined by the scan that asked.
"""

from __future__ import annotations

import math

import trio

from proto.errors import LinckiaError, Unavailable
from proto.ops.compare import CompareFolders
from services.files.index.comparing import ELSEWHERE, Future, Listed
from services.runtime.handlers import Environment

TIMEOUT_S = 10.0
"""A piece takes milliseconds unless the disk is slow, and then the scan would wait for the same disk."""


class CompareClient:
    """`ask` is for any thread, while `run` runs."""

    def __init__(self, env: Environment, ignore: list[str]) -> None:
        self._env = env
        self._ignore = tuple(ignore)
        self._send, self._receive = trio.open_memory_channel[tuple[Future, CompareFolders]](math.inf)
        self._token = trio.lowlevel.current_trio_token()
        self._scope = trio.CancelScope()

    def ask(self, folders: Listed, empty_devices: frozenset[int]) -> Future:
        """Which of the directories are different, in time. Does not block; a scan asks for a few pieces at a time."""
        answer = Future()
        question = CompareFolders(
            paths=[path for path, _ in folders],
            fingerprints=[fingerprint for _, fingerprint in folders],
            ignore=self._ignore,
            empty_devices=tuple(empty_devices),
        )
        try:
            self._token.run_sync_soon(self._take, answer, question)
        except trio.RunFinishedError:
            _refuse(answer)
        return answer

    def _take(self, answer: Future, question: CompareFolders) -> None:
        try:
            self._send.send_nowait((answer, question))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            _refuse(answer)

    async def run(self) -> None:
        """Pass questions on, until `close`."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(ELSEWHERE):
                        nursery.start_soon(self._work)
        finally:
            self._send.close()
            with self._receive:
                while True:
                    try:
                        _refuse(self._receive.receive_nowait()[0])
                    except (trio.WouldBlock, trio.EndOfChannel):
                        break

    def close(self) -> None:
        """Have `run` end; what was asked is refused."""
        self._scope.cancel()

    async def _work(self) -> None:
        async for answer, question in self._receive:
            try:
                found = await self._env.call(question, timeout_s=TIMEOUT_S)
            except LinckiaError as error:
                answer.set_exception(error)
            except BaseException:
                _refuse(answer)
                raise
            else:
                answer.set_result(found.different)


def _refuse(answer: Future) -> None:
    answer.set_exception(Unavailable("it ends"))
