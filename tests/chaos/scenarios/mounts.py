"""Scenarios of a mounted server."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, read_text, scenario


@scenario("small_append")
async def small_append(w: World) -> Prepared:
    path = str(w.root / f"lines-{w.number}")

    async def check(answer: Any) -> str:
        del answer
        return differs(read_text(path), "line\n")

    return Prepared({"path": path, "text": "line"}, check)
