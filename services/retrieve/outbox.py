"""Gives the items of a collection their vectors, in the background and through every kind of failure.

Items wait in the database, so a crash of either service forgets none. While the embedder is away the worker backs off
and tries again; a text that the embedder cannot take is found by halving, set aside and tried again ever more rarely.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import trio

from proto.errors import Kind, LinckiaError
from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, TextKind
from services.retrieve.collection import Collection
from services.retrieve.store import Waiting

_log = logging.getLogger("linckia.retrieve")

EmbedCall = Callable[[EmbedTexts], Awaitable[EmbedResult]]
ModelCall = Callable[[EmbedModelParams], Awaitable[EmbedModel]]

BATCH = 128
"""Items embedded and kept at once: one commit for a second or so of the model's work."""

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 5.0
LONGEST_POSTPONEMENT_S = 3600.0
LOOK_AGAIN_S = 30.0
"""What is postponed is so by the clock on the wall, which may be put forward."""

_AWAY = frozenset({Kind.UNAVAILABLE, Kind.OVERLOADED})
"""Failures that say nothing about the texts."""


async def run_outbox(
    collection: Collection, embed: EmbedCall, model: ModelCall, *, now: Callable[[], float] = time.time
) -> None:
    """Work until cancelled.  Errors of the database end it, and with it the process.

    Args:
        now: Unix time; what is postponed stays so over a restart, so this is no clock of the process.
    """
    await collection.loaded.wait()
    backoff_s = FIRST_BACKOFF_S
    # Later each vector tells of its model: the embedder is not kept from its rest, or woken, to be asked.
    model_checked = False
    while True:
        collection.has_work = trio.Event()
        due, next_time = await collection.due(now(), BATCH)
        try:
            if due:
                await embed_due(collection, due, embed, now)
            else:
                await collection.count_waiting()
                if not model_checked:
                    await _check_model(collection, model)
                    model_checked = True
        except LinckiaError as error:
            if error.failure.kind is Kind.CANCELLED:
                raise
            collection.outbox_trouble = error.failure.message
            if error.failure.kind not in _AWAY:
                _log.warning("%s: vectors wait: %s", collection.name, error.failure.message)
            wait_s = max(backoff_s, (error.failure.retry_after_ms or 0) / 1000)
            await trio.sleep(min(wait_s, LONGEST_BACKOFF_S))
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
            continue
        backoff_s = FIRST_BACKOFF_S
        collection.outbox_trouble = ""
        if not due:
            pause_s = math.inf if next_time is None else max(0.0, next_time - now())
            with trio.move_on_after(min(pause_s, LOOK_AGAIN_S)):
                await collection.has_work.wait()


async def _check_model(collection: Collection, model: ModelCall) -> None:
    # An empty collection takes whichever model comes with its first item.
    if collection.fingerprint is not None:
        current = await model(EmbedModelParams())
        await collection.adopt(current.fingerprint, current.dimensions)


async def embed_due(
    collection: Collection, items: Sequence[Waiting], embed: EmbedCall, now: Callable[[], float]
) -> None:
    """Vectors for `items`; raises LinckiaError where the embedder is away."""
    try:
        result = await embed(EmbedTexts(texts=[item.text for item in items], kind=TextKind.PASSAGE))
    except LinckiaError as error:
        if error.failure.kind in _AWAY:
            raise
        if len(items) > 1:
            half = len(items) // 2
            await embed_due(collection, items[:half], embed, now)
            await embed_due(collection, items[half:], embed, now)
            return
        pause_s = min(30.0 * 2.0 ** items[0].attempts, LONGEST_POSTPONEMENT_S)
        await collection.postpone(items[0], now() + pause_s, error.failure.message)
        return
    result.vectors.check()
    vectors = np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).reshape(result.vectors.shape)
    await collection.adopt(result.fingerprint, vectors.shape[1])
    halves = vectors.astype("<f2")
    await collection.settle(result.fingerprint, [(item, halves[row].tobytes()) for row, item in enumerate(items)])
    await collection.count_waiting()
