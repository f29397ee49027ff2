"""Turns are found by their text, with the conversation that led to them; notes are found beside them."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proto.errors import InvalidParams, LinckiaError, Overloaded, Unavailable
from proto.ops.embed import EmbedMaxSim, EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, MaxSimResult
from proto.ops.retrieve import Group, Hit, Item, RetrievePut, RetrieveSearch, RetrieveStatus, SearchResult
from services.retrieve import main as retrieve
from services.runtime.handlers import Context, Environment, Handlers, OpenService
from services.transcripts.operations.conversations import Corpus, SearchEverything, TranscriptHistory, TranscriptsSearch
from services.transcripts.operations.intake import TranscriptRecord
from services.transcripts.search import MAX_REPEATS, merged
from tests.in_process import Bench
from tests.unit.retrieve.rig import WordEmbedder
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.waiting import until


@contextlib.asynccontextmanager
async def embedding(env: Environment) -> AsyncIterator[Handlers]:
    """`embed`, without a model."""
    handlers = Handlers()
    words = WordEmbedder()

    @handlers.handle(EmbedTexts)
    async def embed(params: EmbedTexts, ctx: Context) -> EmbedResult:
        return await words.embed(params)

    @handlers.handle(EmbedMaxSim)
    async def maxsim(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
        return MaxSimResult(scores=[0.5] * len(params.texts))

    @handlers.handle(EmbedModelParams)
    async def model(params: EmbedModelParams, ctx: Context) -> EmbedModel:
        return EmbedModel(
            model="words", fingerprint="words:1", dimensions=64, max_tokens=256, device="cpu", precision="fp32"
        )

    yield handlers


async def has(bench: Bench, **figures: int) -> bool:
    """Whether the search holds so much."""
    status = await bench.call(RetrieveStatus(collection="transcripts"))
    return all(getattr(status, name) == figure for name, figure in figures.items())


async def found(bench: Bench, query: str, **more: object) -> list[str]:
    result = await bench.call(TranscriptsSearch(query=query, **more))  # type: ignore[arg-type]  # its own fields
    assert result.count == len(result.results)
    return [hit.preview for hit in result.results]


LOGGING = [user("How do I set up logging?"), assistant("Set LOG_LEVEL in the environment."), user("And to a file?")]


async def test_a_hit_comes_with_its_conversation_up_to_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload(LOGGING, "Use a FileHandler for that."))
        await post(bench, payload(LOGGING, "Redirect stderr."))
        result = await bench.call(TranscriptsSearch(query="LOG_LEVEL environment"))
        assert result.query == "LOG_LEVEL environment"
        hit = result.results[0]
        assert (hit.role, hit.preview, hit.depth) == ("assistant", "Set LOG_LEVEL in the environment.", 2)
        assert [(turn.role, turn.text) for turn in hit.lineage] == [
            ("user", "How do I set up logging?"),
            ("assistant", "Set LOG_LEVEL in the environment."),
        ]
        assert hit.lineage[-1].hash == hit.hash
        scores = [each.score for each in result.results]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)
        for each in result.results:
            history = await bench.call(TranscriptHistory(hash=each.hash))
            assert history is not None
            assert [turn.hash for turn in each.lineage] == [message.hash for message in history.messages]


@pytest.mark.parametrize(("top_k", "count"), [(None, 5), (0, 5), (-3, 5), (2, 2), (8, 8), (2**31, 9)])
async def test_top_k_is_five_unless_it_says_another_number(tmp_path: Path, top_k: int | None, count: int) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, [payload([user(f"starfish {n}")], {"role": "assistant", "content": None}) for n in range(9)])
        assert len(await found(bench, "starfish", **({} if top_k is None else {"top_k": top_k}))) == count


async def test_search_is_by_meaning_and_words_and_says_when_it_is_by_words_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, embed=embedding) as bench:
        await post(bench, payload(LOGGING, "Use a FileHandler for that."))
        await until(lambda: has(bench, vectors=4))
        whole = await bench.call(TranscriptsSearch(query="a file handler"))
        assert whole.degraded == [reason for reason in whole.degraded if reason.startswith("rerank")]
        await bench.stop("embed")
        lexical = await bench.call(TranscriptsSearch(query="FileHandler"))
        assert lexical.results[0].preview == "Use a FileHandler for that."
        assert any(reason.startswith("vector:") for reason in lexical.degraded)


async def test_wrappers_that_agents_add_to_a_message_are_not_searched(tmp_path: Path) -> None:
    noise = "<system-reminder>Remember the kangaroo policy.</system-reminder>\n"
    async with serving(tmp_path) as bench:
        await post(bench, payload([user(f"{noise}Where do starfish live?")], "In the sea."))
        assert await found(bench, "kangaroo") == []
        assert await found(bench, "starfish") == [f"{noise}Where do starfish live?"]


async def test_a_long_turn_is_found_by_any_of_its_pieces_and_counts_once(tmp_path: Path) -> None:
    long = "\n\n".join(f"Paragraph {n} of a long answer about tides and the moon." for n in range(400))
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("Tell me all")], f"{long}\n\nThe axolotl regrows limbs.\n\n{long}"))
        assert [len(text) for text in await found(bench, "axolotl")] == [2 * len(long) + 30]


async def test_tools_that_were_called_are_found_by_their_names(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "tides.py"}'}}
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("look")], {"role": "assistant", "content": None, "tool_calls": [call]}))
        assert await found(bench, "tides.py") == ['Tool call: read_file({"path":"tides.py"})']


async def test_conditions_narrow_the_search(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("starfish one")], "starfish two", agent_name="claude", project="sea"))
        await post(bench, payload([user("starfish three")], "starfish four"))
        assert sorted(await found(bench, "starfish", role="user")) == ["starfish one", "starfish three"]
        assert sorted(await found(bench, "starfish", agent="claude")) == ["starfish one", "starfish two"]
        assert await found(bench, "starfish", agent="claude", role="assistant") == ["starfish two"]
        assert sorted(await found(bench, "starfish", project="sea")) == ["starfish one", "starfish two"]
        assert len(await found(bench, "starfish", since=time.time() - 60)) == 4
        assert await found(bench, "starfish", until="2026-01-17") == []
        assert len(await found(bench, "starfish", distinct=True)) == 2


async def test_an_invalid_time_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for name in ("since", "until"):
            with pytest.raises(InvalidParams, match=f"`{name}`") as caught:
                await found(bench, "x", **{name: "someday"})
            assert caught.value.failure.field == name
        with pytest.raises(InvalidParams, match="`query` is blank"):
            await found(bench, " \n")


async def test_an_answer_respects_its_length_limit(tmp_path: Path) -> None:
    said: list[Json] = []
    async with serving(tmp_path) as bench:
        for n in range(10):
            said.append(user(f"question {n} " + "tide " * 200))
            await post(bench, payload(said, f"starfish {n}"))
            said.append(assistant(f"starfish {n}"))
        short = await bench.call(TranscriptsSearch(query="starfish", max_tokens=1500))
        assert 1 <= short.count < 5
        size = sum(len(turn.text) for hit in short.results for turn in hit.lineage)
        assert size < 1500 * 4
        for hit in short.results:
            assert hit.depth == len(hit.lineage)
            assert hit.preview.startswith("starfish")
        # All hashes of a long conversation exceed the limit, but the turn that was found is still shown.
        (longest,) = (await bench.call(TranscriptsSearch(query="starfish 9", max_tokens=100))).results
        assert longest.preview.startswith("starfish")


async def test_turns_are_found_again_after_either_side_died(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("starfish")], "sea star"))
        assert len(await found(bench, "starfish")) == 1
        await bench.stop("retrieve")
        with pytest.raises(Unavailable):
            await found(bench, "starfish")
        await post(bench, payload([user("seahorse")], "pipefish"))
        await bench.start("retrieve")
        await bench.stop("transcripts")
        await bench.start("transcripts")
        await until(lambda: has(bench, groups=4))
        assert await found(bench, "seahorse") == ["seahorse"]
        assert await found(bench, "starfish") == ["starfish"]


async def test_a_search_that_lost_its_folder_receives_everything_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, [payload([user(f"starfish {n}")], f"answer {n}") for n in range(30)])
        assert len(await found(bench, "starfish", top_k=50)) == 30
        await bench.stop("transcripts")
        await bench.stop("retrieve")
        for path in (tmp_path / "retrieve").glob("transcripts*"):
            path.unlink()
        await bench.start("retrieve")
        stray = Group(id="ab" * 32, items=[Item(key="0", text="starfish")])
        await bench.call(RetrievePut(collection="transcripts", groups=[stray]))
        await bench.start("transcripts")
        await until(lambda: has(bench, groups=60))
        assert len(await found(bench, "starfish", top_k=50)) == 30


def in_a_flood(*failures: LinckiaError) -> OpenService:
    """`retrieve`, whose first searches fail so."""
    left = list(failures)

    @contextlib.asynccontextmanager
    async def open_service(env: Environment) -> AsyncIterator[Handlers]:
        async with retrieve.open_service(env) as handlers:
            _, ordinary = handlers.by_name.pop("retrieve_search")

            @handlers.handle(RetrieveSearch)
            async def search(params: RetrieveSearch, ctx: Context) -> object:
                if left:
                    raise left.pop()
                return await ordinary(params, ctx)

            yield handlers

    return open_service


async def test_an_overloaded_search_of_everything_says_so_and_returns_the_remaining_results(tmp_path: Path) -> None:
    full = [Overloaded("256 calls wait already", retry_after_ms=50) for _ in Corpus]
    async with serving(tmp_path, {"search_patience_s": 0}, retrieve=in_a_flood(*full, full[0])) as bench:
        with pytest.raises(Overloaded, match="notes: 256 calls wait already") as caught:
            await bench.call(SearchEverything(query="starfish"))
        assert caught.value.failure.retry_after_ms
        partly = await bench.call(SearchEverything(query="starfish"))
        assert len(partly.searched) == len(Corpus) - 1
        assert any("256 calls wait already" in reason for reason in partly.degraded)
    mixed = [Overloaded("full"), *(Unavailable("it starts") for _ in list(Corpus)[1:])]
    async with serving(tmp_path, {"search_patience_s": 0}, retrieve=in_a_flood(*mixed)) as bench:
        with pytest.raises(Unavailable, match="full"):
            await bench.call(SearchEverything(query="starfish"))


async def test_everything_is_searched_at_once_and_each_hit_says_where_it_is_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("Where do starfish live?")], "In the sea."))
        note = Group(id="stars", title="Stars", items=[Item(key="0", text="starfish grow arms", heading="Arms")])
        await bench.call(RetrievePut(collection="notes", groups=[note]))
        result = await bench.call(SearchEverything(query="starfish"))
        assert {(hit.corpus, hit.text) for hit in result.results} == {
            (Corpus.TRANSCRIPTS, "Where do starfish live?"),
            (Corpus.NOTES, "starfish grow arms"),
        }
        assert result.searched == list(Corpus)
        only = await bench.call(SearchEverything(query="starfish", corpora=[Corpus.NOTES]))
        assert [(hit.corpus, hit.id, hit.context) for hit in only.results] == [(Corpus.NOTES, "stars", "Arms")]


async def test_everything_can_be_searched_in_one_period_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for day, text in ((3, "the starfish lost an arm"), (20, "the starfish is well again")):
            body = {"model": "m", "messages": [user(f"In March, {text}.")]}
            reply = payload([], "Noted.")["response"]
            at = datetime.datetime(2026, 3, day, 12, tzinfo=datetime.UTC).timestamp()
            await bench.call(
                TranscriptRecord(
                    provider="openai", at=at, request=json.dumps(body).encode(), response=json.dumps(reply).encode()
                ),
                caller="operator",
            )
        for name, date in (("old", "2026-03-04"), ("new", "2026-03-21")):
            seconds = datetime.datetime.fromisoformat(f"{date}T09:00+00:00").timestamp()
            note = Group(id=name, items=[Item(key="0", text=f"starfish note {name}")], metadata={"date": seconds})
            await bench.call(RetrievePut(collection="notes", groups=[note]))
        file = Group(id="file", items=[Item(key="0", text="starfish")])
        await bench.call(RetrievePut(collection="documents", groups=[file]))
        result = await bench.call(SearchEverything(query="starfish", since="2026-03-01", until="2026-03-10"))
        assert {hit.text for hit in result.results} == {"In March, the starfish lost an arm.", "starfish note old"}
        assert Corpus.DOCUMENTS not in result.searched
        assert any("documents: not searched" in reason for reason in result.degraded)
        late = await bench.call(SearchEverything(query="starfish", since="2026-03-20"))
        assert {hit.text for hit in late.results} == {"In March, the starfish is well again.", "starfish note new"}
        with pytest.raises(InvalidParams, match="until"):
            await bench.call(SearchEverything(query="starfish", until="whenever"))
        with pytest.raises(InvalidParams, match="at least one of the corpora"):
            await bench.call(SearchEverything(query="starfish", since="today", corpora=[Corpus.DOCUMENTS]))


async def test_a_time_in_the_words_is_named_with_the_period_to_ask_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        named = await bench.call(SearchEverything(query="what did I say about starfish in September 2025"))
        assert "`since` 2025-09-01" in named.hint
        assert "`until` 2025-09-30" in named.hint
        assert (await bench.call(SearchEverything(query="starfish"))).hint == ""
        assert (await bench.call(SearchEverything(query="starfish in September 2025", since="2025"))).hint == ""


async def test_words_said_in_many_conversations_take_one_place_and_the_others_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for n in range(30):
            await post(bench, payload([user(f"Number {n}"), assistant("Yes?"), user("starfish starfish")], "Sure."))
        await post(bench, payload([user("a starfish by the sea")], "Nice."))
        result = await bench.call(SearchEverything(query="starfish", limit=2))
        assert [hit.text for hit in result.results] == ["starfish starfish", "a starfish by the sea"]
        repeated = result.results[0].metadata["repeated_in"]
        assert isinstance(repeated, list)
        assert len({result.results[0].id, *repeated}) == 1 + MAX_REPEATS
        assert "repeated_in" not in result.results[1].metadata


def test_hits_of_one_score_keep_the_order_of_their_corpus_and_corpora_take_turns() -> None:
    def result(*groups: tuple[str, float]) -> SearchResult:
        hits = [
            Hit(group=group, key="0", score=score, title="", heading="", text="", group_metadata={}, item_metadata={})
            for group, score in groups
        ]
        return SearchResult(hits=hits, source="hybrid", stages=["lexical", "vector"])

    found = {
        Corpus.NOTES: result(("z", 0.9), ("y", 0.9), ("a", 0.9), ("m", 0.2)),
        Corpus.DOCUMENTS: result(("d", 0.9), ("c", 0.5)),
    }
    assert [hit.id for hit in merged(found)] == ["d", "z", "y", "a", "c", "m"]
