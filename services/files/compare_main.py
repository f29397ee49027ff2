"""The service `compare`: looks at folders for a scan of `files`, in a process of its own, for one uses one processor.

It is of the same folder as `files`, since both must come to the same fingerprints; it holds nothing and writes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from proto.operation import Params
from proto.ops.compare import Compared, CompareFolders
from services.files import paths
from services.files.index.comparing import different
from services.files.index.listing import ignore_rules
from services.files.main import COLLECTIONS
from services.runtime.handlers import Context, Environment, Handlers


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """One folder."""
    return [CompareFolders(paths=[paths.as_folder(str(root))], fingerprints=[b"0"])]


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once."""
    gc.set_threshold(*COLLECTIONS)
    roots = paths.Roots(env.roots).paths
    # Two at once would only contend for the interpreter.
    turn = trio.CapacityLimiter(1)
    handlers = Handlers()
    rules = functools.lru_cache(8)(lambda patterns: ignore_rules(patterns, roots))

    @handlers.handle(CompareFolders)
    async def compare_folders(params: CompareFolders, ctx: Context) -> Compared:
        given = list(zip(params.paths, params.fingerprints, strict=False))
        # Whatever is outside, or has nothing to be compared with, is different without a look at it.
        looked_at = [number for number, (path, _) in enumerate(given) if _is_below(path, roots)]
        found = await trio.to_thread.run_sync(
            different, [given[number] for number in looked_at], rules(params.ignore),
            frozenset(params.empty_devices), limiter=turn,
        )  # fmt: skip
        others = set(range(len(params.paths))).difference(looked_at)
        return Compared(different=sorted([*others, *(looked_at[number] for number in found)]))

    yield handlers


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return path.endswith("/") and "\0" not in path and paths.is_within(path.rstrip("/") or "/", roots)
