"""What a conversation is: lists, search, deletion and export agree on it, while equal turns are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from proto.errors import InvalidParams, OperationError
from services.transcripts.operations.carry import TranscriptExport, TranscriptRestore
from services.transcripts.operations.conversations import (
    Conversation,
    TranscriptDelete,
    TranscriptList,
    TranscriptNode,
    TranscriptsSearch,
    TranscriptStats,
)
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_layouts import claude, codex, spoken, take_in
from tests.unit.transcripts.test_listing import billed, listed


def headless(session: str, day: int, *, answer: str = "All green.", project: str = "/home/u/ci") -> list[Json]:
    """A session of one prompt and its answer."""
    about = {"sessionId": session, "cwd": project, "timestamp": f"2026-03-0{day}T10:00:00.000Z"}
    reply = claude(f"{session}2", f"{session}1", "assistant", [{"type": "text", "text": answer}], id=f"m{session}")
    return [claude(f"{session}1", None, "user", "Check the nightly build") | about, reply | about]


async def take_headless(bench: Bench, days: Sequence[int] = (1, 2, 3), **more: str) -> list[Conversation]:
    for day in days:
        await take_in(bench, headless(f"h{day}", day, **more), f"/h{day}")
    return await listed(bench, sort="oldest")


async def test_one_prompt_with_one_answer_on_three_dates_is_three_conversations_and_two_turns(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        found = await take_headless(bench)
        assert (await bench.call(TranscriptStats())).total_nodes == 2
        assert [one.began[:10] for one in found] == ["2026-03-01", "2026-03-02", "2026-03-03"]
        assert len({one.id for one in found}) == 3
        assert [(one.turns, one.tokens.input, one.tokens.output) for one in found] == [(2, 7, 5)] * 3
        # Once more, nothing is new.
        assert await take_headless(bench) == found


async def test_chats_with_one_system_prompt_are_distinguished_by_their_first_question(tmp_path: Path) -> None:
    system = {"role": "system", "content": "You are a cook."}
    first, second = [system, user("Soup?")], [system, user("Cake?")]
    async with serving(tmp_path) as bench:
        await post(bench, [billed(first, "Leek.", "gpt-4o", 10, 1), billed(second, "Lemon.", "gpt-4o", 20, 2)])
        await post(bench, billed([*first, assistant("Leek."), user("And then?")], "Fish.", "gpt-4o", 30, 3))
        found = await listed(bench, sort="tokens")
        assert [(one.title, one.turns, one.tokens.input) for one in found] == [("Soup?", 5, 40), ("Cake?", 3, 20)]
        assert (await bench.call(TranscriptStats())).root_count == 1


async def test_text_that_an_agent_adds_as_the_user_is_not_the_first_question(tmp_path: Path) -> None:
    around = [
        user("# AGENTS.md instructions for /w\n\nUse tabs."),
        user("<environment_context>\n<cwd>/w</cwd>\n</environment_context>"),
    ]
    async with serving(tmp_path) as bench:
        for question in ("Fix the login", "Port it", "Write the docs"):
            await post(bench, payload([*around, user(question)], "Done."))
        assert sorted(one.title for one in await listed(bench)) == ["Fix the login", "Port it", "Write the docs"]


async def test_messages_one_by_one_are_one_conversation_from_the_system_prompt_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        records = [{"role": "system", "content": "Be brief."}, user("How many?"), assistant("Five.")]
        for end in (1, 2, 3):
            await take_in(bench, records[:end], "/f")
        (one,) = await listed(bench)
        assert (one.title, one.turns) == ("How many?", 3)


async def test_a_chat_without_a_question_is_listed_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [{"messages": [{"role": "system", "content": "Say hello."}, assistant("Hello.")]}])
        assert [one.turns for one in await listed(bench)] == [2]


async def test_a_turn_that_projects_share_is_found_in_each_and_once_for_both(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, headless("a", 1, answer="The disk is full.", project="/p/a"), "/a")
        # Indexed before the second project shares it.
        assert (await bench.call(TranscriptsSearch(query="nightly build", project="/p/b"))).count == 0
        await take_in(bench, headless("b", 2, answer="The queue is stuck.", project="/p/b"), "/b")
        for project in ("/p/a", "/p/b"):
            found = await bench.call(TranscriptsSearch(query="nightly build", project=project, role="user"))
            assert [hit.preview for hit in found.results] == ["Check the nightly build"]
        distinct = await bench.call(TranscriptsSearch(query="check the nightly build", distinct=True))
        assert [hit.preview for hit in distinct.results] == ["Check the nightly build"]
        each = await bench.call(TranscriptsSearch(query="disk full queue stuck", role="assistant", distinct=True))
        assert {hit.preview for hit in each.results} == {"The disk is full.", "The queue is stuck."}


async def test_deleting_a_conversation_leaves_others_what_they_share(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_headless(bench, (1, 2))
        await take_in(bench, headless("own", 3, answer="Only here."), "/own")
        first, second, own = await listed(bench, sort="oldest")
        gone = await bench.call(TranscriptDelete(conversation=own.id))
        assert (gone.deleted, gone.placeholders, gone.shared) == (1, 0, 1)
        assert await bench.call(TranscriptNode(hash=own.hash)) is None
        gone = await bench.call(TranscriptDelete(conversation=first.id))
        assert (gone.deleted, gone.shared) == (0, 2)
        assert await listed(bench) == [second]
        gone = await bench.call(TranscriptDelete(conversation=second.id))
        assert (gone.deleted, gone.shared) == (2, 0)
        assert await listed(bench) == []
        assert (await bench.call(TranscriptStats())).total_nodes == 0
        with pytest.raises(OperationError, match="conversation not found"):
            await bench.call(TranscriptDelete(conversation=second.id))


async def test_one_turn_can_be_deleted_from_one_conversation_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        first, second = await take_headless(bench, (1, 2))
        gone = await bench.call(TranscriptDelete(conversation=first.id, hash=first.hash))
        assert (gone.deleted, gone.shared) == (0, 1)
        assert [(one.turns, one.tokens.output) for one in await listed(bench, sort="oldest")] == [(1, 0), (2, 5)]
        # From all.
        await bench.call(TranscriptDelete(hash=second.hash))
        assert [one.turns for one in await listed(bench)] == [1, 1]


async def test_a_deletion_names_what_it_deletes(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        with pytest.raises(InvalidParams, match="`hash`, `conversation`, or both"):
            await bench.call(TranscriptDelete())
        with pytest.raises(InvalidParams, match="`bar`"):
            await bench.call(TranscriptDelete(conversation="0" * 32, bar=True))


async def test_a_copied_history_is_counted_once_even_after_its_origin_is_deleted(tmp_path: Path) -> None:
    origin = headless("o", 1)
    copied = [record | {"sessionId": "f"} for record in origin]
    more = claude("f3", "o2", "user", "And the tests?") | {"sessionId": "f", "cwd": "/home/u/fork"}
    reply = claude("f4", "f3", "assistant", [{"type": "text", "text": "Red."}], id="mf") | {"sessionId": "f"}
    async with serving(tmp_path) as bench:
        await take_in(bench, origin, "/o")
        await take_in(bench, [*copied, more, reply], "/f")
        by_turns = await listed(bench, sort="turns")
        assert [(one.turns, one.tokens.input, one.tokens.estimated) for one in by_turns] == [
            (4, 7, False), (2, 7, False),
        ]  # fmt: skip
        await bench.call(TranscriptDelete(conversation=by_turns[1].id))
        (left,) = await listed(bench)
        assert (left.turns, left.tokens.input, left.tokens.estimated) == (4, 14, False)


async def test_turns_of_subagents_count_but_do_not_provide_titles(tmp_path: Path) -> None:
    about = {"sessionId": "h1", "cwd": "/home/u/ci", "isSidechain": True}
    agent = [
        claude("g1", None, "user", "You are a linter. Report.") | about,
        claude("g2", "g1", "assistant", [{"type": "text", "text": "No finding."}], id="mg") | about,
    ]
    async with serving(tmp_path) as bench:
        await take_in(bench, agent, "/agent-1")
        await take_in(bench, headless("h1", 1), "/h1")
        (one,) = await listed(bench)
        assert (one.title, one.turns, one.tokens.input) == ("Check the nightly build", 4, 14)
        node = await bench.call(TranscriptNode(hash=one.hash))
        assert node is not None
        assert node.bucket.content[0].text == "All green."


async def test_sessions_of_codex_and_a_compaction_within_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for name in ("x", "y"):
            await take_in(
                bench,
                [
                    codex("session_meta", id=name, cwd=f"/p/{name}"),
                    spoken("user", "Go"),
                    spoken("assistant", f"Gone {name}."),
                    codex("compacted", message="We went."),
                    spoken("user", "Go on"),
                    spoken("assistant", "Further."),
                ],
                f"/{name}",
            )
        found = await listed(bench)
        assert sorted((one.project, one.title, one.turns) for one in found) == [("/p/x", "Go", 5), ("/p/y", "Go", 5)]


async def test_an_export_carries_conversations_and_one_without_them_is_read(tmp_path: Path) -> None:
    async with serving(tmp_path / "here") as bench:
        await take_headless(bench)
        await post(bench, [billed([user(question)], "Yes.", "gpt-4o", 10, 1) for question in ("One?", "Two?")])
        before = await bench.call(TranscriptList(sort="oldest"))
        exported = [one.turn for one in (await bench.call(TranscriptExport())).turns]
    async with serving(tmp_path / "there") as bench:
        assert (await bench.call(TranscriptRestore(turns=exported))).changed > 0
        after = await bench.call(TranscriptList(sort="oldest"))
        assert [(one.id, one.turns, one.project, one.tokens, one.cost_usd) for one in after.conversations] == [
            (one.id, one.turns, one.project, one.tokens, one.cost_usd) for one in before.conversations
        ]
        assert (await bench.call(TranscriptRestore(turns=exported))).changed == 0
        # The session's file goes on where it was.
        await take_in(bench, headless("h1", 1), "/h1")
        assert (await bench.call(TranscriptList())).total == before.total
    async with serving(tmp_path / "old") as bench:
        bare = [msgspec.structs.replace(turn, conversations=[]) for turn in exported]
        await bench.call(TranscriptRestore(turns=bare))
        titles = sorted(one.title for one in await listed(bench))
        assert titles == ["Check the nightly build", "One?", "Two?"]
        assert all(not one.tokens.estimated for one in await listed(bench))


async def test_a_sum_without_a_price_says_that_it_is_incomplete(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, billed([user("One?")], "Yes.", "gpt-4o", 1_000_000, 0))
        whole = await bench.call(TranscriptList())
        assert (whole.cost_usd, whole.cost_incomplete, whole.unpriced) == (2.5, False, [])
        more = [user("One?"), assistant("Yes."), user("Sure?")]
        await post(bench, billed(more, "No.", "house-model", 10, 1))
        await post(bench, billed([user("Two?")], "No.", "other-model", 10, 1))
        whole = await bench.call(TranscriptList(sort="cost"))
        assert (whole.cost_usd, whole.cost_incomplete, whole.unpriced) == (2.5, True, ["house-model", "other-model"])
        assert [(one.cost_usd, one.cost_incomplete) for one in whole.conversations] == [(2.5, True), (None, True)]
        await take_in(bench, [user("Which model?"), assistant("None.")], "/bare")
        assert (await bench.call(TranscriptList(query="which"))).unpriced == ["not stated"]
        priced = await bench.call(TranscriptList(query="three"))
        assert (priced.cost_usd, priced.cost_incomplete) == (None, False)
