"""A turn or conversation is deleted by its own name, and one that only looks like it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.errors import LinckiaError
from services.transcripts.operations.conversations import TranscriptDelete, TranscriptHistories, TranscriptList
from tests.unit.transcripts.rig import payload, post, serving, user

QUESTIONS = ["a*", "ab", "A", "a", "%", "[a]", "caf\u00e9", "cafe\u0301", "~", "-a", "a\\", "{a,b}", "?"]


async def test_only_the_conversation_that_is_named_is_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for question in QUESTIONS:
            await post(bench, payload([user(question)], f"about {question}"))
        conversations = (await bench.call(TranscriptList())).conversations
        assert len(conversations) == len(QUESTIONS)
        there = {one.id: one.title for one in conversations}
        for one in conversations:
            await bench.call(TranscriptDelete(conversation=one.id))
            there.pop(one.id)
            now = (await bench.call(TranscriptList())).conversations
            assert {each.id: each.title for each in now} == there
            assert len((await bench.call(TranscriptHistories())).histories) == len(there)


@pytest.mark.parametrize("wrong", ["", "a" * 31, "%" * 32, "A" * 32, "*", "[a-f]" * 6 + "aa"])
async def test_a_part_of_an_id_names_nothing(tmp_path: Path, wrong: str) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("a")], "b"))
        for asked in (TranscriptDelete(conversation=wrong), TranscriptDelete(hash=wrong * 2)):
            with pytest.raises(LinckiaError):
                await bench.call(asked)
        assert len((await bench.call(TranscriptList())).conversations) == 1
