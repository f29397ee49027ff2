"""Exactly the named memories are forgotten: a scope, an id, or words that are really there."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.errors import LinckiaError
from services.memory.operations import Forget
from tests.unit.memory.rig import listed, remembering, say

SCOPES = [
    "project:a*", "project:ab", "project:a%", "project:a_", "project:[a]", "project:A", "project:a",
    "project:caf\u00e9", "project:cafe\u0301", "project:~", "project:-a", "project:a\\", "project:{a,b}",
]  # fmt: skip


async def test_a_scope_is_only_itself(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        for scope in SCOPES:
            await say(bench, f"The gate of {SCOPES.index(scope)} is larch", scope=scope)
        left = set(SCOPES)
        for scope in SCOPES:
            gone = await bench.call(Forget(scope=scope, confirm=True))
            assert gone.forgotten == 1
            left -= {scope}
            assert {one.scope for one in await listed(bench)} == left


@pytest.mark.parametrize("query", [" ", "\t", "\u200b", "\u00ad", "\u0301", "\u2028", "\u200d\ufe0f", "?", "...", "()"])
async def test_a_query_that_shows_nothing_forgets_nothing(tmp_path: Path, query: str) -> None:
    async with remembering(tmp_path) as bench:
        await say(bench, "The gate is larch", scope="user")
        if query in ("\u0301", "\u200d\ufe0f"):
            await bench.call(Forget(scope="user", query=query, confirm=True))
        else:
            with pytest.raises(LinckiaError, match="`query`: there are no words in it"):
                await bench.call(Forget(scope="user", query=query, confirm=True))
        assert len(await listed(bench)) == 1


@pytest.mark.parametrize(
    "query", ["%", "*", "[a-z]*", ".*", "_", "\\", "l%", "lar", "la*", "gate|x", "-larch x", "NOT x"]
)
async def test_symbols_and_parts_of_words_are_not_patterns(tmp_path: Path, query: str) -> None:
    async with remembering(tmp_path) as bench:
        await say(bench, "The gate is larch", scope="user")
        await say(bench, "The door is oak", scope="user")
        await bench.call(Forget(scope="user", query=query, confirm=True))
        assert len(await listed(bench)) == 2
