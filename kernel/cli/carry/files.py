"""Reads and writes the files of an export (JSON Lines), reads paginated lists from operations, and batches items to the
size of a request."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from kernel.configure import manifests
from kernel.configure.config import ConfigError
from proto.control.client import Client, KernelGone
from proto.control.commands import Failed
from proto.control.terminal import patiently, repeated
from proto.json_types import JsonObject
from proto.manifest import Export
from proto.ops.kernel import KernelStatusParams
from proto.wire.frames import read_body

BATCH_BYTES = 4 * 1024 * 1024
BATCH = 500

ENDED_S = 0.2
"""How soon a thread notices that nobody wants what it makes."""

LINE_BYTES = 64 * 1024 * 1024
"""Longest line of an export that is read: no request to the kernel may be longer."""

T = TypeVar("T")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def line(value: object) -> str:
    return _encode(value) + "\n"


def write(file: Path, values: Iterable[object]) -> int:
    """Write one line for each value; return the number of lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with file.open("w", encoding="utf-8") as out:
        for count, value in enumerate(values, 1):  # noqa: B007  # the last count is returned
            out.write(line(value))
    return count


def opened(file: Path) -> BinaryIO:
    """Open a file of an export, which may come from somebody else: no link, and nothing that blocks or never ends.

    Raises Failed, FileNotFoundError.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        why = "it is a link" if isinstance(error, OSError) and error.errno == errno.ELOOP else str(error)
        raise Failed(f"{file} cannot be read: {why}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Failed(f"{file} cannot be read: it is not a regular file")
    return os.fdopen(descriptor, "rb")


def lines(file: Path) -> Iterator[Any]:
    """Yield the JSON values in a file; none if it does not exist. Raises Failed."""
    try:
        source = opened(file)
    except FileNotFoundError:
        return
    with source:
        for number in itertools.count(1):
            said = source.readline(LINE_BYTES + 1)
            if not said:
                return
            if len(said) > LINE_BYTES:
                raise Failed(f"{file}, line {number}: it is longer than {LINE_BYTES} bytes")
            try:
                value = json.loads(said)
            except (ValueError, RecursionError):
                raise Failed(f"{file}, line {number}: this is not JSON, or nested too deeply") from None
            yield value


def batched(items: Iterable[T], most: int = BATCH, length: Callable[[T], int] = lambda _: 0) -> Iterator[list[T]]:
    """Group items for requests: at most `most` items and about `BATCH_BYTES` each."""
    batch: list[T] = []
    held = 0
    for item in items:
        batch.append(item)
        held += length(item)
        if len(batch) == most or held >= BATCH_BYTES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


class BytesClient(Client):
    """A client that returns bytes in large results as they are; in small ones they are base64, as in JSON."""

    def _body(self, size: int, gone: str) -> Any:
        body = self._lines.read(size)
        if len(body) < size:
            raise KernelGone(gone)
        return read_body(body)


def ahead(items: Iterable[T], most: int = 1) -> Iterator[T]:
    """Yield the items, of which at most `most` are made in advance, in a thread of their own."""
    made: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(most)
    has_ended = threading.Event()

    def put(one: tuple[T] | BaseException | None) -> bool:
        while not has_ended.is_set():
            with contextlib.suppress(queue.Full):
                made.put(one, timeout=ENDED_S)
                return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put((item,)):
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001  # raised in the thread that wants the item
            put(error)

    maker = threading.Thread(target=make)
    maker.start()
    try:
        while (one := made.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one[0]
    finally:
        has_ended.set()
        maker.join()


def named(client: Client, operation: str, params: JsonObject) -> Any:
    """Call a repeatable operation of a service, whose types are not known here. Raises CallFailed."""
    return repeated(lambda: client.call_named(operation, params))


Following = Callable[[JsonObject, int], JsonObject]
"""Takes a page and the number of items so far; returns the parameters for the next page."""


def by_offset(_: JsonObject, count: int) -> JsonObject:
    return {"offset": count}


def by_next(page: JsonObject, _: int) -> JsonObject:
    return {"after": page["next"]}


def listed(client: Client, operation: str, key: str, following: Following, **params: object) -> Iterator[JsonObject]:
    """Yield everything that an operation lists under `key`, until a page is empty."""
    count = 0
    while found := (page := named(client, operation, params))[key]:
        yield from found
        count += len(found)
        params |= following(page, count)


def declared(client: Client) -> dict[str, tuple[Export, ...]]:
    """Return the exports that the manifests of served services declare, by service. Raises Failed."""
    try:
        found = manifests.served(patiently(client, KernelStatusParams()).packages)
    except ConfigError as error:
        raise Failed(str(error)) from None
    return {each.manifest.name: each.manifest.exports for each in found if each.manifest.exports}
