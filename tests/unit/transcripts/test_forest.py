"""Nothing is stored twice, conversations share their beginnings, and deleted turns are gone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw
import msgspec
import pytest

from proto.errors import OperationError
from services.transcripts.operations.conversations import (
    Form,
    TranscriptCheckout,
    TranscriptDelete,
    TranscriptHistories,
    TranscriptHistory,
    TranscriptNode,
    TranscriptsSearch,
    TranscriptStats,
)
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, name_of, payload, post, serving, user


async def counted(bench: Bench) -> tuple[int, int, int]:
    stats = await bench.call(TranscriptStats())
    return stats.total_nodes, stats.root_count, stats.leaf_count


async def talk(bench: Bench, turns: int, **more: str) -> str:
    """A conversation whose whole history is posted with every turn; the hash of its last reply."""
    said: list[Json] = []
    head = ""
    for n in range(turns):
        said.append(user(f"question {n}"))
        head = (await post(bench, payload(said, f"answer {n}", **more))).head_hash
        said.append(assistant(f"answer {n}"))
    return head


@pytest.mark.slow
async def test_a_history_that_is_posted_again_with_each_turn_is_kept_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        head = await talk(bench, 100)
        assert await counted(bench) == (200, 1, 1)
        history = await bench.call(TranscriptHistory(hash=head))
        assert history is not None
        assert history.depth == 200 == len(history.messages)
        assert [message.content[0].text for message in history.messages[:3]] == ["question 0", "answer 0", "question 1"]


async def test_the_same_turn_twice_is_nothing_new(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        first = await post(bench, payload([user("hello")], "hi"))
        again = await post(bench, payload([user("hello")], "hi"))
        assert (first.nodes, again.nodes) == (2, 0)
        assert first.head_hash == again.head_hash


async def test_branches_share_their_prefix(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        said = [user("hello"), assistant("hi"), user("tea or coffee?")]
        await post(bench, payload(said, "tea"))
        await post(bench, payload(said, "coffee"))
        assert await counted(bench) == (5, 1, 2)


async def test_a_reply_and_its_echo_are_one_node_though_another_name_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await talk(bench, 5, model="small", answered_by="small-2026-01-17")
        assert await counted(bench) == (10, 1, 1)


async def test_an_echo_that_comes_before_its_reply_is_the_same_node(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        later = await post(bench, payload([user("a"), assistant("b"), user("c")], "d", answered_by="m-1"))
        first = await post(bench, payload([user("a")], "b", answered_by="m-1"))
        assert (later.nodes, first.nodes) == (4, 0)
        node = await bench.call(TranscriptNode(hash=first.head_hash))
        assert node is not None
        assert node.stop_reason == "stop"


async def test_a_conversation_continues_after_a_change_of_model(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("a")], "b", model="small"))
        await post(bench, payload([user("a"), assistant("b"), user("c")], "d", model="large", agent_name="other"))
        assert await counted(bench) == (4, 1, 1)


async def test_remarks_that_an_agent_adds_to_its_history_make_no_new_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("a<system-reminder>It is 9:00.</system-reminder>")], "b"))
        said = [user("a<system-reminder>It is 9:05.</system-reminder>"), assistant("b"), user("c")]
        await post(bench, payload(said, "d"))
        assert await counted(bench) == (4, 1, 1)


async def test_the_same_words_to_another_model_are_another_node(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("a")], "b", model="small"))
        await post(bench, payload([user("a")], "b", model="large"))
        assert await counted(bench) == (4, 2, 2)


async def test_every_node_is_named_by_the_hash_of_its_content(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await talk(bench, 4, model="small", answered_by="small-2026", agent_name="ünïcode")
        histories = await bench.call(TranscriptHistories())
        (history,) = histories.histories
        parent = ""
        for message in history.messages:
            node = await bench.call(TranscriptNode(hash=message.hash))
            assert node is not None
            assert name_of(msgspec.to_builtins(node.bucket), parent) == node.hash
            assert (node.parent_hash or "") == parent == message.parent_hash
            parent = node.hash


async def test_a_deleted_turn_cannot_be_found_and_is_not_in_the_files(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        head = await talk(bench, 3)
        secret = await post(bench, payload([user("tell me")], "the zanzibar protocol"))
        gone = await bench.call(TranscriptDelete(hash=secret.head_hash))
        assert (gone.deleted, gone.placeholders, gone.search_pending) == (1, 0, 0)
        assert await bench.call(TranscriptNode(hash=secret.head_hash)) is None
        found = await bench.call(TranscriptsSearch(query="zanzibar"))
        assert found.results == []
        assert (await bench.call(TranscriptHistory(hash=head))) is not None
        for path in (tmp_path / "transcripts").glob("transcripts.db*"):
            assert b"zanzibar" not in path.read_bytes()


async def test_a_deleted_turn_that_others_follow_leaves_an_empty_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        head = await talk(bench, 3)
        history = await bench.call(TranscriptHistory(hash=head))
        assert history is not None
        gone = await bench.call(TranscriptDelete(hash=history.messages[2].hash))
        assert (gone.deleted, gone.placeholders) == (1, 1)
        assert await counted(bench) == (5, 1, 1)
        after = await bench.call(TranscriptHistory(hash=head))
        assert after is not None
        assert [m.hash for m in after.messages] == [m.hash for m in history.messages]
        assert after.messages[2].content == []
        (hit, *_) = (await bench.call(TranscriptsSearch(query="answer 2", top_k=1))).results
        assert (hit.depth, len(hit.lineage), hit.lineage[2].text) == (6, 6, "")
        # The place goes once nothing follows it any more.
        await bench.call(TranscriptDelete(hash=history.messages[3].hash, descendants=True))
        assert await counted(bench) == (2, 1, 1)
        with contextlib.closing(apsw.Connection(str(tmp_path / "transcripts/transcripts.db"))) as db:
            assert db.execute("SELECT count(*) FROM node").fetchone() == (2,)


async def test_descendants_are_deleted_too_on_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        head = await talk(bench, 3)
        history = await bench.call(TranscriptHistory(hash=head))
        assert history is not None
        gone = await bench.call(TranscriptDelete(hash=history.messages[1].hash, descendants=True))
        assert gone.deleted == 5
        assert await counted(bench) == (1, 1, 1)


async def test_barred_turns_do_not_come_back_with_a_client_s_history(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        said = [user("my word is zanzibar")]
        first = await post(bench, payload(said, "noted"))
        history = await bench.call(TranscriptHistory(hash=first.head_hash))
        assert history is not None
        await bench.call(TranscriptDelete(hash=history.messages[0].hash, descendants=True, bar=True))
        head = (await post(bench, payload([*said, assistant("noted"), user("go on")], "done"))).head_hash
        after = await bench.call(TranscriptHistory(hash=head))
        assert after is not None
        assert [len(m.content) for m in after.messages] == [0, 0, 1, 1]
        assert (await bench.call(TranscriptsSearch(query="zanzibar"))).results == []


async def test_deleted_turns_that_are_posted_again_are_stored_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        first = await post(bench, payload([user("a")], "b"))
        await bench.call(TranscriptDelete(hash=first.head_hash))
        again = await post(bench, payload([user("a")], "b"))
        assert (again.nodes, again.head_hash) == (1, first.head_hash)
        assert await bench.call(TranscriptNode(hash=first.head_hash)) is not None


async def test_an_unknown_hash_is_reported_as_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        assert await bench.call(TranscriptNode(hash="0" * 64)) is None
        assert await bench.call(TranscriptHistory(hash="zz")) is None
        with pytest.raises(OperationError, match="node not found"):
            await bench.call(TranscriptDelete(hash="0" * 64))
        with pytest.raises(OperationError, match="node not found"):
            await bench.call(TranscriptCheckout(hash="0" * 64))


async def test_a_conversation_is_checked_out_in_the_words_of_each_api(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone":"UTC"}'}}
    said: list[Json] = [
        {"role": "system", "content": "Be brief."},
        user("What time is it?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    async with serving(tmp_path) as bench:
        head = (await post(bench, payload(said, "Noon."))).head_hash
        openai = await bench.call(TranscriptCheckout(hash=head))
        assert openai.messages == [*said, assistant("Noon.")]
        assert (openai.depth, openai.form, openai.system) == (5, Form.OPENAI, "")
        anthropic = await bench.call(TranscriptCheckout(hash=head, form=Form.ANTHROPIC))
        assert anthropic.system == "Be brief."
        assert anthropic.messages == [
            {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "now", "input": {"zone": "UTC"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "12:00"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Noon."}]},
        ]
