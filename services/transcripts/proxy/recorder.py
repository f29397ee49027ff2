"""Delivers exchanges to `transcripts` after their replies and apart from the traffic: no client waits for this.

Exchanges that cannot be delivered now are kept in the spool. A turn that is delivered twice is stored once.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import time
from collections import deque
from pathlib import Path

import trio

from proto.control.client import CallFailed, Client, ControlError
from proto.host.durable import replace_file
from proto.json_types import JsonObject
from services.shared.backoff import Backoff
from services.transcripts.proxy.relay import Exchange

log = logging.getLogger("linckia.proxy")

PROVIDERS = {
    "/chat/completions": "openai",
    "/responses": "openai",
    "/messages": "anthropic",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}
"""Requests that are turns of a conversation, by the end of their path."""

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Limit for exchanges in memory; more go to the spool immediately."""

CALL_TIMEOUT_S = 60.0
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
END_PATIENCE_S = 3.0


class Away(Exception):
    """Nothing can be delivered at the moment; the message says why."""


class Recorder:
    """A queue with one task; `add` never waits."""

    def __init__(self, data_dir: Path, spool: Spool, *, agent: str = "", project: str = "") -> None:
        self._data_dir = data_dir
        self._spool = spool
        self._agent = agent
        self._project = project
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._filled = trio.Event()
        self.handed_over = 0
        self.lost = 0

    def add(self, exchange: Exchange) -> None:
        """Queue an exchange if it is a turn of a conversation with a reply."""
        provider = next((name for end, name in PROVIDERS.items() if exchange.path.endswith(end)), "")
        if not provider or exchange.method != b"POST" or not 200 <= exchange.status < 300 or not exchange.response:
            return
        params = {
            "provider": provider,
            "agent_name": self._agent,
            "project": self._project,
            "at": time.time(),
            "request": base64.b64encode(exchange.request).decode(),
            "request_encoding": exchange.request_encoding,
            "response": base64.b64encode(exchange.response).decode(),
            "response_encoding": exchange.response_encoding,
            **({"partial": True} if exchange.partial else {}),
        }
        data = json.dumps(params).encode()
        if self._held_bytes + len(data) > 2 * MAX_HELD_BYTES:
            # The disk is slower than the traffic.
            self._lose("there is no room to keep it until it can be delivered")
            return
        self._held.append(data)
        self._held_bytes += len(data)
        self._filled.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled; the rest then goes to the spool."""
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        task_status.started()
        try:
            while True:
                try:
                    await self._hand_over()
                    if not backoff.is_fresh:
                        log.info("transcripts are recorded again")
                    backoff.succeeded()
                    await self._filled.wait()
                except Away as error:
                    if backoff.is_fresh:
                        log.warning("turns are spooled until they can be recorded: %s", error)
                    await self._set_aside()
                    await backoff.pause()
        finally:
            with trio.CancelScope(shield=True):
                # The next proxy delivers the rest.
                with trio.move_on_after(END_PATIENCE_S), contextlib.suppress(Away):
                    await self._hand_over()
                await self._set_aside()

    async def _hand_over(self) -> None:
        """Deliver everything, oldest first. Raises Away."""
        for file in await trio.to_thread.run_sync(self._spool.files):
            await self._call(await trio.Path(file).read_bytes())
            await trio.to_thread.run_sync(self._spool.drop, file)
        while self._held:
            if self._held_bytes > MAX_HELD_BYTES:
                await self._set_aside()
                raise Away("more arrived than can be recorded at once")
            await self._call(self._held[0])
            self._held_bytes -= len(self._held.popleft())
        self._filled = trio.Event()

    async def _set_aside(self) -> None:
        while self._held:
            data = self._held[0]
            try:
                if not await trio.to_thread.run_sync(self._spool.put, data):
                    self._lose("the spool folder is full")
            except OSError as error:
                self._lose(str(error))
            self._held_bytes -= len(self._held.popleft())

    def _lose(self, why: str) -> None:
        self.lost += 1
        log.error("a turn is not recorded: %s", why)

    async def _call(self, params: bytes) -> None:
        """Deliver one exchange; one that will never be accepted is dropped. Raises Away."""
        try:
            with trio.fail_after(CALL_TIMEOUT_S):
                result = await trio.to_thread.run_sync(self._ask, params, abandon_on_cancel=True)
        except CallFailed as error:
            if error.failure["kind"] not in ("invalid_params", "forbidden", "internal"):
                raise Away(str(error)) from None
            self._lose(str(error))
        except (ControlError, OSError) as error:
            raise Away(f"no kernel answers: {error or type(error).__name__}") from error
        except trio.TooSlowError:
            raise Away("the kernel does not answer") from None
        else:
            if result.get("problem"):
                self._lose("; ".join(result.get("errors", [])))
            else:
                self.handed_over += 1

    def _ask(self, params: bytes) -> JsonObject:
        with Client(self._data_dir) as client:
            answer: JsonObject = client.call_named("transcript_record", json.loads(params))
        return answer


MAX_BYTES = 1024**3


class Spool:
    """Files in `folder`, which is created when needed; all methods block."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._number = 0
        self._bytes = sum(file.stat().st_size for file in self.files())

    def files(self) -> list[Path]:
        """Return the files, oldest first."""
        return sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []

    def put(self, data: bytes) -> bool:
        """Store data; it is on disk when this returns. Returns False if there is no room. Raises OSError."""
        if self._bytes + len(data) > self._max_bytes:
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._number += 1
        path = self._folder / f"{time.time_ns():020}-{os.getpid()}-{self._number:06}.json"
        replace_file(path, data)
        self._bytes += len(data)
        return True

    def drop(self, file: Path) -> None:
        """Delete a delivered file. Raises OSError."""
        size = file.stat().st_size if file.exists() else 0
        file.unlink(missing_ok=True)
        self._bytes -= size
