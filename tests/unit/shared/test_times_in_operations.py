"""Every operation that takes a time takes words for one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams
from services.files.operations.resources import ResourceSearch
from services.knowledge.operations.notes import SearchDocuments
from services.memory.operations import Recall
from services.transcripts.operations.conversations import TranscriptList, TranscriptsSearch
from tests.unit.files.rig import files_service, index
from tests.unit.files.test_resources import fill
from tests.unit.knowledge.rig import notes_service, settled, write
from tests.unit.memory.rig import remembering, say, texts
from tests.unit.transcripts.rig import payload, post, serving, user

DAY_S = 86_400


def aged(file: Path, days: int) -> None:
    os.utime(file, (time.time() - days * DAY_S,) * 2)


async def test_notes_are_searched_by_words_for_a_time(tmp_path: Path) -> None:
    for name, days in (("new", 0), ("older", 3), ("old", 40)):
        aged(write(tmp_path / "root", f"{name}.md", "zebra"), days)
    async with notes_service(tmp_path / "data", tmp_path / "root") as bench:
        await settled(bench, 3)

        async def found(**times: Any) -> set[str]:
            answer = await bench.call(SearchDocuments(query="zebra", **times))
            return {hit.id for hit in answer.results}

        assert await found(since="yesterday") == {"new"}
        assert await found(since="3 days ago") == {"new", "older"}
        assert await found(since="last 7 days", until="yesterday") == {"older"}
        assert await found(until="4 days ago") == {"old"}
        with pytest.raises(InvalidParams, match=r"`since`: 'someday' is not a time; write .*`yesterday`"):
            await found(since="someday")


async def test_memories_are_recalled_by_words_for_a_time(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        await say(bench, "The zebra is striped")
        assert await texts(bench, "zebra", since="yesterday") == ["The zebra is striped"]
        assert await texts(bench, "zebra", since="2 hours ago", until="tomorrow") == ["The zebra is striped"]
        assert await texts(bench, "zebra", until="2 days ago") == []
        with pytest.raises(InvalidParams, match="`until`: 'someday'"):
            await bench.call(Recall(query="zebra", until="someday"))


async def test_conversations_are_listed_and_searched_by_words_for_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("Of zebras and otters")], "Striped."))
        assert (await bench.call(TranscriptList(since="last week"))).total == 1
        assert (await bench.call(TranscriptList(until="2 days ago"))).total == 0
        assert (await bench.call(TranscriptsSearch(query="zebras", since="yesterday"))).count
        assert not (await bench.call(TranscriptsSearch(query="zebras", until="a week ago"))).count
        with pytest.raises(InvalidParams, match="`since`: 'someday'"):
            await bench.call(TranscriptList(since="someday"))


async def test_files_are_found_by_words_for_a_time(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name, days in (("new.txt", 0), ("old.txt", 40)):
        aged(write(root, name, "text"), days)
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        await fill(tmp_path / "data", {"all": [f"{root}/new.txt", f"{root}/old.txt"]}, [])

        async def found(**times: Any) -> list[str]:
            return [entry.name for entry in (await bench.call(ResourceSearch(name="all", **times))).entries]

        assert await found(min_mtime="last week") == ["new.txt"]
        assert await found(max_mtime="a month ago") == ["old.txt"]
        with pytest.raises(InvalidParams, match="`min_mtime`: 'someday'"):
            await found(min_mtime="someday")
