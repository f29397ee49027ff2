"""Conversations are listed with title, size, tokens and cost, in step with every turn that comes and goes."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

from proto.errors import InvalidParams
from services.transcripts.operations.conversations import (
    Conversation,
    Form,
    TranscriptCheckout,
    TranscriptDelete,
    TranscriptList,
)
from services.transcripts.operations.pages import TranscriptCosts, TranscriptFind, TranscriptPage
from services.transcripts.prices import Price, Prices, Tokens
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_layouts import CLAUDE, CODEX, take_in


def billed(messages: list[Json], reply: str, model: str, prompt: int, completion: int, **more: Any) -> Json:
    turn = payload(messages, reply, model=model, **more)
    turn["response"]["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
    return turn


async def listed(bench: Bench, **given: Any) -> list[Conversation]:
    return (await bench.call(TranscriptList(**given))).conversations


async def test_a_conversation_has_the_sum_of_its_turns_tokens_and_costs(tmp_path: Path) -> None:
    start = [user("<system-reminder>x</system-reminder>Plan the *garden*\nand the shed")]
    more = [*start, assistant("Beans."), user("Only beans?")]
    async with serving(tmp_path) as bench:
        await post(bench, billed(start, "Beans.", "gpt-4o-2024-08-06", 1000, 10, project="/home/a/garden"))
        (one,) = await listed(bench)
        assert (one.title, one.project, one.turns, one.model) == (
            "Plan the *garden*", "/home/a/garden", 2, "gpt-4o-2024-08-06",
        )  # fmt: skip
        assert (one.tokens.input, one.tokens.output, one.tokens.estimated) == (1000, 10, False)
        assert one.cost_usd == pytest.approx(1000 * 2.5e-6 + 10 * 10e-6)
        kept = await post(bench, billed(more, "And peas.", "gpt-4o", 2000, 20, project="/home/a/garden"))
        (one,) = await listed(bench)
        assert (one.hash, one.turns, one.tokens.input) == (kept.head_hash, 4, 3000)
        around = [user("# AGENTS.md instructions for /w\n\nBe brief."), user("Water them"), assistant("Done.")]
        await post(bench, payload([*around, user("Thanks")], "Hm."))
        assert (await listed(bench, query="water"))[0].title == "Water them"
        # A model with an unknown price and without token counts.
        await post(bench, payload([user("Hello")], "x" * 400, model="nobody-knows-1"))
        other = (await listed(bench, query="hello"))[0]
        assert (other.cost_usd, other.tokens.estimated) == (None, True)
        assert other.tokens.output >= 100
        whole = await bench.call(TranscriptList())
        assert whole.total == 3
        assert whole.cost_usd == pytest.approx(one.cost_usd)


async def test_deleted_conversations_are_not_listed_and_their_titles_are_in_no_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("The codename is Zanzibar")], "Yes."))
        (one,) = await listed(bench)
        assert "Zanzibar" in one.title
        (root,) = [turn for turn in (await bench.call(TranscriptCheckout(hash=one.hash, form=Form.STORED))).messages][
            :1
        ]
        assert root["role"] == "user"
        # With the service's own SQLite: a second one in this process would drop its locks.
        database = str(tmp_path / "transcripts" / "transcripts.db")
        with contextlib.closing(apsw.Connection(database, flags=apsw.SQLITE_OPEN_READONLY)) as db:
            ((first,),) = db.execute("SELECT lower(hex(hash)) FROM node WHERE parent IS NULL")
        await bench.call(TranscriptDelete(hash=first))
        assert [each.title for each in await listed(bench)] == [""]
        await bench.call(TranscriptDelete(hash=one.hash))
        assert await listed(bench) == []
    for path in (tmp_path / "transcripts").rglob("*"):
        assert path.is_dir() or b"Zanzibar" not in path.read_bytes(), path


async def test_lists_are_filtered_sorted_and_paged(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, CLAUDE, "/claude")
        await take_in(bench, CODEX, "/codex")
        for n in range(5):
            turn = billed([user(f"Question {n} of all")], "A.", "gpt-5", 100 * n, 1, project=f"/p/{n}", agent_name="me")
            await post(bench, turn)
        assert {one.agent for one in await listed(bench)} == {"claude-code", "codex", "me"}
        mine = await listed(bench, agent="me", sort="tokens")
        assert [one.title for one in mine] == [f"Question {n} of all" for n in (4, 3, 2, 1, 0)]
        assert {one.agent for one in await listed(bench, agent="anthropic")} == {"claude-code"}
        assert [one.project for one in await listed(bench, project="/p/3/")] == ["/p/3"]
        assert len(await listed(bench, project="/p")) == 5
        assert [one.title for one in await listed(bench, query="ALL question 2")] == ["Question 2 of all"]
        assert await listed(bench, since="2999-01-01") == []
        assert len(await listed(bench, agent="me", since="0000001", until="2999-01-01")) == 5
        seen, cursor = [], None
        while True:
            page = await bench.call(TranscriptList(agent="me", sort="cost", limit=2, cursor=cursor))
            seen += [one.title for one in page.conversations]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == [one.title for one in mine]
        for wrong in ({"cursor": "x"}, {"cursor": "newest:1.0:1", "sort": "cost"}, {"since": "someday"}):
            with pytest.raises(InvalidParams, match=f"`{next(iter(wrong))}`"):
                await listed(bench, **wrong)


async def test_other_prices_are_in_force_at_the_next_start(tmp_path: Path) -> None:
    turn = billed([user("Hello")], "Hi.", "mine", 1_000_000, 1_000_000)
    for prices, cost in (({}, None), ({"mine": {"input": 1.0, "output": 2.0}}, 3.0), ({}, None)):
        async with serving(tmp_path, {"prices": prices}) as bench:
            await post(bench, turn)
            assert [one.cost_usd for one in await listed(bench)] == [cost]


@pytest.mark.parametrize(
    ("model", "input_"),
    [
        ("claude-opus-4-5-20251101", 5), ("anthropic/claude-sonnet-4-5", 3), ("gpt-4.1-2025-04-14", 2),
        ("gpt-5-pro", 0), ("models/gemini-2.5-flash", 0.3), ("claude-opus-4-20250514", 15), ("", 0),
        ("claude-3-5-haiku-latest", 0.8),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 3), ("anthropic.claude-3-5-sonnet-20241022-v2:0", 3),
        ("us-gov.anthropic.claude-haiku-4-5-20251001-v1:0", 1), ("global.anthropic.claude-opus-4-6-v1", 5),
        ("arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-opus-4-5-20251101-v1:0", 5),
        ("anthropic.claude-3-5-haiku-20241022-v1:0:200k", 0.8),
        ("bedrock/jp.anthropic.claude-opus-4-1-20250805-v1:0", 15),
        ("claude-sonnet-4@20250514", 3), ("claude-3-5-sonnet-v2@20241022", 3),
        ("vertex_ai/claude-opus-4-1@20250805", 15),
        ("claude-haiku-4-5@default", 1), ("claude-sonnet-4-5-20250929[1m]", 3), ("claude-opus-4-6[1m]", 5),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0[1m]", 3), ("anthropic/claude-sonnet-4.5", 3),
        ("openrouter/anthropic/claude-3.7-sonnet:thinking", 3), ("openai/gpt-4.1", 2),
        ("claude-next@20991231", 0), ("us.anthropic.claude-unknown-v1:0", 0),
    ],
)  # fmt: skip
def test_models_are_known_by_their_names_without_a_date_a_route_or_a_window(model: str, input_: float) -> None:
    found = Prices({}).of(model)
    assert (found.input if found else 0) == input_


def test_a_cache_is_cheaper_to_read_and_dearer_to_write() -> None:
    prices = Prices({"here/own": Price(input=10, output=0)})
    tokens = Tokens(input=1_000_000, read=600_000, written=200_000)
    assert prices.cost({"claude-sonnet-4-5": tokens})[0] == pytest.approx(0.2 * 3 + 0.6 * 0.3 + 0.2 * 3.75)
    assert prices.cost({"here/own": tokens}) == (10, [])
    assert prices.cost({"here/own": tokens, "unknown": Tokens(output=1)}) == (10, ["unknown"])
    assert prices.cost({"unknown": Tokens(output=1)}) == (None, ["unknown"])


def test_an_hour_in_the_cache_costs_more_than_five_minutes() -> None:
    prices = Prices({"own": Price(input=10, output=0), "fixed": Price(input=10, output=0, cache_write_1h=7)})
    tokens = Tokens(input=1_000_000, written=1_000_000, written_1h=400_000)
    assert prices.cost({"claude-opus-4-5": tokens})[0] == pytest.approx(0.6 * 6.25 + 0.4 * 10)
    assert prices.cost({"own": tokens})[0] == pytest.approx(0.6 * 10 + 0.4 * 20)
    assert prices.cost({"fixed": tokens})[0] == pytest.approx(0.6 * 10 + 0.4 * 7)


async def test_a_conversation_is_read_as_text_page_by_page(tmp_path: Path) -> None:
    said = [user("Tell me a long story"), assistant("Once. " * 3000), user("And the end?")]
    async with serving(tmp_path) as bench:
        head = (await post(bench, payload(said, "They lived."))).head_hash
        text, cursor, pages = "", None, 0
        while pages == 0 or cursor is not None:
            page = await bench.call(TranscriptCheckout(hash=head, form=Form.TEXT, cursor=cursor))
            assert (page.messages, len(page.text) <= 8000) == ([], True)
            text, cursor, pages = text + page.text, page.next_cursor, pages + 1
        assert text.startswith("## user\n\nTell me a long story\n\n## assistant\n\nOnce. Once. ")
        assert text.endswith("## user\n\nAnd the end?\n\n## assistant\n\nThey lived.\n\n")
        assert pages == 3
        for form, cursor in ((Form.TEXT, "99-0"), (Form.TEXT, "a"), (Form.OPENAI, "0-0")):
            with pytest.raises(InvalidParams, match="`cursor`"):
                await bench.call(TranscriptCheckout(hash=head, form=form, cursor=cursor))
        await take_in(bench, CLAUDE)
        (claude,) = await listed(bench, agent="claude-code", query="sea star")
        told = (await bench.call(TranscriptCheckout(hash=claude.hash, form=Form.TEXT))).text
        assert "Tool call: Read(" in told
        assert "[image/png]" in told


async def test_a_conversation_is_read_page_by_page_and_searched(tmp_path: Path) -> None:
    told = [user("Turn 0 of Ärger"), *(assistant(f"Turn {n}") if n % 2 else user(f"Turn {n}") for n in range(1, 30))]
    async with serving(tmp_path) as bench:
        kept = await post(bench, billed(told, "z" * 30_000, "gpt-4o", 1000, 10))
        head = kept.head_hash
        pages = [await bench.call(TranscriptPage(hash=head, first=first, limit=10)) for first in (0, 10, 20, 30)]
        turns = [turn for page in pages if page is not None for turn in page.turns]
        assert [turn.number for turn in turns] == list(range(31))
        assert [turn.blocks[0].text for turn in turns[:-1]] == [each["content"] for each in told]
        last = turns[-1].blocks[0]
        assert (last.size, set(last.text)) == (30_000, {"z"})
        assert len(last.text) < last.size
        around = await bench.call(TranscriptPage(hash=head, turn=turns[17].hash, limit=10, summed=True))
        assert around is not None
        assert (around.first, around.total, around.continues) == (10, 31, False)
        assert around.spent is not None
        assert (around.spent.tokens.input, around.spent.models) == (1000, ["gpt-4o"])
        before = await bench.call(TranscriptPage(hash=turns[4].hash, first=99))
        assert before is not None
        assert (before.first, before.total, before.continues) == (4, 5, True)
        found = await bench.call(TranscriptFind(hash=head, query="TURN 1", limit=3))
        assert found is not None
        assert ([each.number for each in found.turns], found.total) == ([1, 10, 11], 12)
        assert all(turns[each.number].hash == each.hash for each in found.turns)
        umlaut = await bench.call(TranscriptFind(hash=head, query="ärger"))
        assert umlaut is not None
        assert [each.number for each in umlaut.turns] == [0]
        with pytest.raises(InvalidParams, match="query"):
            await bench.call(TranscriptFind(hash=head, query=" "))
        assert await bench.call(TranscriptPage(hash="0" * 64)) is None
        assert await bench.call(TranscriptFind(hash="0" * 64, query="x")) is None


async def test_costs_are_added_up_by_day_project_and_model(tmp_path: Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    async with serving(tmp_path) as bench:
        await post(bench, billed([user("One")], "a", "gpt-4o", 1000, 10, project="/home/a"))
        await post(bench, billed([user("Two")], "b", "gpt-4o", 2000, 20, project="/home/a"))
        await post(bench, billed([user("Three")], "c", "nobody-knows-1", 5, 5, project="/home/b"))
        found = await bench.call(TranscriptCosts())
        assert [(each.project, each.model, each.calls, each.input, each.output) for each in found.shares] == [
            ("/home/a", "gpt-4o", 2, 3000, 30), ("/home/b", "nobody-knows-1", 1, 5, 5),
        ]  # fmt: skip
        assert {each.day for each in found.shares} <= {today, datetime.datetime.now(datetime.UTC).date().isoformat()}
        assert found.shares[0].cost_usd == pytest.approx(3000 * 2.5e-6 + 30 * 10e-6)
        assert found.shares[1].cost_usd is None
        assert found.shares[0].cost_usd == (await bench.call(TranscriptList())).cost_usd
        assert (await bench.call(TranscriptCosts(since="2001-01-01", until="2001-12-31"))).shares == []
