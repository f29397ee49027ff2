"""Scenarios of documents and their sessions."""

from __future__ import annotations

from typing import Any

from tests.chaos.duplicates import Prepared, World, differs, scenario


@scenario("documents_add")
async def documents_add(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        del answer
        found = await w.step("documents_list", name=w.name)
        return differs(len(found["documents"]), 1)

    return Prepared({"name": w.name, "content": f"starfish {w.number}"}, check, "execute")


@scenario("documents_update")
async def documents_update(w: World) -> Prepared:
    await w.step("documents_add", name=w.name, content=f"starfish {w.number}")

    async def check(answer: Any) -> str:
        return differs(answer["results"][0]["updated"], 1)

    return Prepared({"name": w.name, "tags": ["x"]}, check, "execute")


@scenario("documents_delete")
async def documents_delete(w: World) -> Prepared:
    await w.step("documents_add", name=w.name, content=f"starfish {w.number}")

    async def check(answer: Any) -> str:
        return differs(answer["results"][0]["success"], True)

    return Prepared({"name": w.name}, check, "execute")


@scenario("documents_session_start")
async def session_start(w: World) -> Prepared:
    async def check(answer: Any) -> str:
        return differs(answer["label"], w.name)

    return Prepared({"label": w.name}, check, "session")


async def _session(w: World) -> str:
    started = await w.ask("session", action="start", params={"label": w.name})
    return str(started["session_id"])


@scenario("documents_session_stop")
async def session_stop(w: World) -> Prepared:
    id_ = await _session(w)

    async def check(answer: Any) -> str:
        return differs(answer["session_id"], id_)

    return Prepared({"session_id": id_}, check, "session")


@scenario("documents_session_watch")
async def session_watch(w: World) -> Prepared:
    id_ = await _session(w)

    async def check(answer: Any) -> str:
        return differs(len(answer["roots"]), 1)

    return Prepared({"session_id": id_, "root": str(w.folder("a"))}, check, "session")


async def _document(w: World) -> Prepared:
    await w.step("documents_add", name=w.name, content=f"starfish {w.number}")

    async def check(answer: Any) -> str:
        return differs(answer["updated"], 1)

    return Prepared({"name": w.name}, check, "session")


scenario("documents_session_pin")(_document)
scenario("documents_session_unpin")(_document)
