"""`linckia reembed`: makes the vectors that are missing, by waiting for this kernel, or on the nodes of a Ray cluster.

With `--cluster`, this process takes pages from the outboxes, has a helper process embed them by Ray Data, and stores
what comes back. Nothing is kept elsewhere, so after any interruption the next command goes on with what is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import ConfigError, Placed
from proto.control.client import Client, KernelGone, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import Bars, OnProgress, connect, counted, patiently, say
from proto.host import extras
from proto.host.environment import environment
from proto.names import module
from proto.operation import Params
from proto.ops.embed import EmbedModelParams
from proto.ops.retrieve import Outbox, RetrieveOutboxes, RetrieveSettle, RetrieveWaiting, SettledItem, WaitingItem
from proto.wire.cluster import (
    LENGTH_BYTES,
    Connected,
    Done,
    Embedding,
    FromEmbedding,
    Stopped,
    Texts,
    ToEmbedding,
    Vectors,
)

R = TypeVar("R")

MODULE = module("services.cluster.reembed")
WORKER = module("services.embed.bulk")
EMBED = "embed"

PATIENCE_S = 120.0
"""How long a failure may last: a service or the kernel restarts, a server fails over."""

AGAIN_S = 1.0
"""Interval between two looks at the outboxes, and between attempts to reach the kernel."""

WINDOW_ITEMS, WINDOW_CHARACTERS = 32_768, 16 * 1024 * 1024
"""Limits of what is with the cluster at once. Nodes load the model for each window, so it should take a minute."""

PAGE_ITEMS = MAX_SETTLED = 1024
"""Items in one call."""

_OF_THE_KERNEL = {"disk_limit_bytes", "workers"}
"""Settings of `embed` that the kernel applies."""


class _Kernel:
    """Calls repeatable operations; waits for a kernel that restarts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._client: Client | None = connect(arguments)

    def call(self, params: Params[R]) -> R:
        """Raises CallFailed, ControlError."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._client is None:
                    self._client = connect(self._arguments)
                return patiently(self._client, params, patience_s=PATIENCE_S)
            except (KernelGone, NoKernel):
                self.close()
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(AGAIN_S)

    def outboxes(self, collection: str) -> list[Outbox]:
        return self.call(RetrieveOutboxes(collection=collection)).outboxes

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def reembed(arguments: argparse.Namespace) -> int:
    """Make the vectors that are missing. Raises CallFailed, ControlError, Failed, Usage."""
    collection = arguments.collection or ""
    with contextlib.closing(_Kernel(arguments)) as kernel, Bars() as show:
        if arguments.cluster:
            made = _on_cluster(arguments, kernel, collection, show)
        else:
            made = _here(kernel, collection, show)
        left = [outbox for outbox in kernel.outboxes(collection) if outbox.waiting]
    where = " on the cluster" if arguments.cluster else ""
    say(f"{counted(made, 'vector')} made{where}" if made else "no vectors were made")
    for outbox in left:
        failed = f"; the model failed on {outbox.failed:,} of them, which are tried again" if outbox.failed else ""
        say(f"{outbox.collection}: {counted(outbox.waiting, 'item')} still waiting{failed}")
    return 0


def _here(kernel: _Kernel, collection: str, show: OnProgress | None) -> int:
    """Wait until only items on which the model failed are left; return how many vectors were made meanwhile."""
    totals: dict[str, int] = {}
    while True:
        outboxes = kernel.outboxes(collection)
        for each in outboxes:
            name, waiting = each.collection, each.waiting
            totals[name] = max(totals.get(name, 0), waiting)
            _report(show, name, totals[name] - waiting, totals[name], each.trouble)
        if all(each.waiting <= each.failed for each in outboxes):
            return sum(totals.values()) - sum(each.waiting for each in outboxes)
        time.sleep(AGAIN_S)


def _report(show: OnProgress | None, name: str, done: int, total: int, said: str = "") -> None:
    if show is not None and total:
        show({"done": max(0, done), "total": total, "message": f"{name}: {said}"})


def _on_cluster(arguments: argparse.Namespace, kernel: _Kernel, collection: str, show: OnProgress | None) -> int:
    """Embed what waits on the cluster; return how many vectors were stored."""
    config = _config(arguments)
    outboxes = [each for each in kernel.outboxes(collection) if each.waiting]
    if not outboxes:
        return 0
    # The same model here and there, or the vectors could not be compared.
    fingerprint = kernel.call(EmbedModelParams()).fingerprint
    made = 0
    with _Helper(arguments.data_dir, msgspec.structs.replace(config, fingerprint=fingerprint)) as helper:
        for outbox in outboxes:
            name, total = outbox.collection, outbox.waiting
            for window in _windows(kernel, name):
                for vectors in helper.embedded([item.text for item in window]):
                    waiting = _settle(kernel, name, fingerprint, window, vectors)
                    made += len(vectors.indexes)
                    _report(show, name, total - waiting, total)
    return made


def _config(arguments: argparse.Namespace) -> Embedding:
    """Return how to embed, without the fingerprint. Raises Usage."""
    if not extras.is_installed(extras.RAY_DATA):
        raise Usage(f"--cluster needs Ray Data; install it with `{extras.command_for(extras.RAY_DATA)}`")
    try:
        config = load(Flags(data_dir=str(arguments.data_dir)), os.environ)
    except ConfigError as error:
        raise Usage(str(error)) from None
    if config.cluster is None:
        raise Usage('there is no cluster in the settings; set [cluster] with engine = "ray" and its address')
    settings = {
        key: value
        for key, value in config.services.get(EMBED, {}).items()
        if key not in ("disk_limit_bytes", "workers")
    }
    return Embedding(
        address=config.cluster.address,
        worker=WORKER,
        settings=settings,
        fingerprint="",
        resources=config.cluster.services.get(EMBED, Placed()).reserved,
        parent_pid=os.getpid(),
    )


def _windows(kernel: _Kernel, collection: str) -> Iterator[list[WaitingItem]]:
    """Yield what waits, the newest items first, in lists of limited size."""
    window: list[WaitingItem] = []
    characters = 0
    for item in _items(kernel, collection):
        window.append(item)
        characters += len(item.text)
        if len(window) >= WINDOW_ITEMS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _items(kernel: _Kernel, collection: str) -> Iterator[WaitingItem]:
    asked = RetrieveWaiting(collection=collection, limit=PAGE_ITEMS)
    while items := kernel.call(asked).items:
        yield from items
        asked = msgspec.structs.replace(asked, before=items[-1].id)


def _settle(kernel: _Kernel, collection: str, fingerprint: str, window: list[WaitingItem], vectors: Vectors) -> int:
    """Store vectors; return how many items of the collection still wait."""
    waiting = 0
    for start in range(0, len(vectors.indexes), MAX_SETTLED):
        found = [window[index] for index in vectors.indexes[start : start + MAX_SETTLED]]
        items = [SettledItem(id=item.id, hash=item.hash) for item in found]
        joined = b"".join(vectors.vectors[start : start + MAX_SETTLED])
        settle = RetrieveSettle(collection=collection, fingerprint=fingerprint, items=items, vectors=joined)
        waiting = kernel.call(settle).vectors_waiting
    return waiting


class _Helper:
    """The process that speaks with Ray; a context manager. Its output is in `logs/reembed.log`."""

    def __init__(self, data_dir: Path, config: Embedding) -> None:
        self.log = data_dir / "logs" / "reembed.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
        with self.log.open("wb") as log:
            # In a session of its own, so that Ctrl-C reaches this process only.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=environment({**own, "RAY_USAGE_STATS_ENABLED": "0"}), start_new_session=True,
            )  # fmt: skip
        self._config = config

    def __enter__(self) -> _Helper:
        try:
            self._send(self._config)
            while not isinstance(self._receive(), Connected):
                pass
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and its work on the nodes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def embedded(self, texts: list[str]) -> Iterator[Vectors]:
        """Yield vectors as they come. Raises Failed."""
        self._send(Texts(texts=texts))
        while not isinstance(message := self._receive(), Done):
            if isinstance(message, Vectors):
                yield message

    def _send(self, message: ToEmbedding) -> None:
        assert self._process.stdin is not None
        data = msgspec.msgpack.encode(message)
        # What it said before it ended is read below.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(len(data).to_bytes(LENGTH_BYTES) + data)
            self._process.stdin.flush()

    def _receive(self) -> FromEmbedding:
        assert self._process.stdout is not None
        head = self._process.stdout.read(LENGTH_BYTES)
        body: Any = self._process.stdout.read(int.from_bytes(head)) if len(head) == LENGTH_BYTES else b""
        if not body:
            raise Failed(f"the cluster was lost; {self.log} has the details. What is stored stays: run it again")
        message: FromEmbedding = msgspec.msgpack.decode(body, type=FromEmbedding)
        if isinstance(message, Stopped):
            raise Failed(message.why)
        return message
