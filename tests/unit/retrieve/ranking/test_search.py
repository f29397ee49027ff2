"""A search returns the results it has, and reports truthfully how they were found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import msgspec
import pytest
import trio

from proto.errors import Timeout, Unavailable
from proto.ops.embed import EmbedResult, EmbedTexts
from proto.ops.retrieve import Filter, Fusion, Group, Item, RetrieveSearch
from services.retrieve.index.lexical import Fts5, WordsDamaged
from services.retrieve.local_collection import LocalCollection
from services.retrieve.ranking.queries import Patience
from services.retrieve.ranking.search import search
from services.retrieve.store import FoundWords, Snapshot
from tests.unit.retrieve.rig import WordEmbedder, ask, embedded, execute, group, opened

CORPUS = [
    group("cats", "cats purr and sleep", title="Cats"),
    group("dogs", "dogs bark at cats", title="Dogs"),
    group("fish", "fish swim in water", title="Fish"),
]


def asked(query: str, method: str = "weighted", *, limit: int = 20, candidates: int = 50) -> RetrieveSearch:
    return RetrieveSearch(
        collection="notes", query=query, fusion=Fusion(method=method), limit=limit, candidates=candidates
    )


async def filled(collection: LocalCollection, embedder: WordEmbedder) -> None:
    await collection.put(CORPUS)
    await embedded(collection, embedder)


@pytest.mark.parametrize(
    ("method", "stages", "source"),
    [
        ("weighted", ["lexical", "vector"], "hybrid"),
        ("rrf", ["lexical", "vector"], "hybrid"),
        ("lexical", ["lexical"], "lexical"),
        ("vector", ["vector"], "vector"),
    ],
)
async def test_the_stages_named_are_the_stages_that_ran(
    tmp_path: Path, method: str, stages: list[str], source: str
) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        calls = embedder.calls
        result = await ask(collection, embedder, asked("cats purr", method))
        assert (result.stages, result.source, result.degraded) == (stages, source, [])
        assert result.hits[0].group == "cats"
        assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)
        assert all(0 <= hit.score <= 1 for hit in result.hits)
        assert (embedder.calls > calls) is (method != "lexical")


async def test_a_search_by_words_alone_waits_for_a_thread_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        whole, reads = collection.read, []

        async def noted(work: Callable[[Snapshot], object]) -> object:
            reads.append(work)
            return await whole(work)

        monkeypatch.setattr(collection, "read", noted)
        found = await ask(collection, embedder, asked("cats purr", "lexical"))
        assert (found.hits[0].group, found.hits[0].text, len(reads)) == ("cats", "cats purr and sleep", 1)


@pytest.mark.parametrize("method", ["weighted", "lexical", "vector"])
async def test_texts_are_read_for_the_requested_number_of_hits_only(tmp_path: Path, method: str) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        whole = await ask(collection, embedder, asked("cats dogs", method))
        assert len(whole.hits) > 1
        for texts in (0, 1):
            part = await ask(collection, embedder, msgspec.structs.replace(asked("cats dogs", method), texts=texts))
            ids = [(hit.group, hit.key, hit.score, hit.lexical, hit.vector) for hit in part.hits]
            assert ids == [(hit.group, hit.key, hit.score, hit.lexical, hit.vector) for hit in whole.hits]
            assert part.hits[:texts] == whole.hits[:texts]
            assert not any(hit.text or hit.heading or hit.item_metadata for hit in part.hits[texts:])


@pytest.mark.parametrize("method", ["weighted", "rrf", "vector"])
async def test_words_answer_while_the_embedder_is_down(tmp_path: Path, method: str) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        embedder.failure = Unavailable("embed is restarting")
        result = await ask(collection, embedder, asked("cats", method))
        assert {hit.group for hit in result.hits} == {"cats", "dogs"}
        assert (result.stages, result.source) == (["lexical"], "lexical")
        assert result.degraded == ["vector: embed is restarting"]


async def test_a_hanging_embedder_costs_one_search_its_patience_and_the_next_ones_little(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        embedder.hangs = True
        patience = Patience(0.3)
        result = await ask(collection, embedder, asked("cats"), patience)
        assert result.degraded == ["vector: embedding the query timed out"]
        assert len(result.hits) == 2
        assert patience.timeout_s() == pytest.approx(Patience.BRIEF_S)
        embedder.hangs = False
        assert (await ask(collection, embedder, asked("cats"), patience)).degraded == []
        assert patience.timeout_s() == pytest.approx(0.3)


async def test_a_timeout_answered_by_the_kernel_counts_as_one() -> None:
    patience = Patience(0.3)
    patience.learn(answered=False)
    assert patience.timeout_s() == pytest.approx(Patience.BRIEF_S)
    assert Timeout("late").failure.kind == "timeout"


async def test_vectors_answer_while_the_word_index_is_damaged_and_it_is_repaired(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        await execute(collection, "UPDATE words_data SET block = x'ffffffffffffffffffff' WHERE id > 10")
        repairs: list[str] = []

        async def find() -> list[str]:
            question = asked("cats purr and sleep")
            result = await search(collection, question, embedder.query, Patience(5), lambda: repairs.append("asked"))
            stages.append(result.stages)
            return [hit.group for hit in result.hits]

        stages: list[list[str]] = []
        assert (await find())[0] == "cats"
        assert repairs == ["asked"]
        await collection.rebuild_words()
        assert (await find())[0] == "cats"
        assert stages == [["vector"], ["lexical", "vector"]]


async def test_with_every_stage_dead_the_search_fails_and_is_never_empty(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        await execute(collection, "UPDATE words_data SET block = x'ffffffffffffffffffff' WHERE id > 10")
        embedder.failure = Unavailable("embed is down")
        with pytest.raises(Unavailable, match=r"lexical: .*vector: embed is down|vector: embed is down.*lexical: "):
            await ask(collection, embedder, asked("cats"))


async def test_a_dead_index_and_a_dead_database_are_distinguished(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put(CORPUS)
        await execute(collection, "DROP TABLE items")
        with pytest.raises(apsw.SQLError):
            await ask(collection, WordEmbedder(), asked("cats"))


async def test_pending_vectors_are_reported(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put(CORPUS)
        result = await ask(collection, embedder, asked("cats"))
        assert (result.stages, result.vectors_waiting) == (["lexical"], 3)
        assert result.degraded == ["vector: all 3 pieces are still waiting for vectors"]
        await embedded(collection, embedder)
        await collection.put([group("new", "cats again")])
        result = await ask(collection, embedder, asked("cats"))
        assert result.degraded == ["vector: 1 pieces are still waiting for vectors"]
        assert "new" in {hit.group for hit in result.hits}


async def test_an_empty_collection_is_empty_without_being_degraded(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        result = await ask(collection, WordEmbedder(), asked("cats"))
        assert (result.hits, result.degraded, result.stages) == ([], [], ["lexical"])


async def test_a_changed_model_is_noticed_by_a_search_and_never_compared_with_old_vectors(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        embedder.fingerprint = "words:2"
        result = await ask(collection, embedder, asked("cats"))
        assert result.stages == ["lexical"]
        (reason,) = result.degraded
        assert "no model words:1 is here (0 of 3 pieces have a vector of words:2, the model in use)" in reason
        assert all(hit.vector is None for hit in result.hits)


async def test_until_all_vectors_are_of_a_new_model_those_of_the_one_before_are_searched(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        before = await ask(collection, embedder, asked("cats"))
        embedder.fingerprint, embedder.earlier = "words:2", {"words:1"}
        now = await ask(collection, embedder, asked("cats"))
        assert (now.hits, now.stages, now.degraded) == (before.hits, ["lexical", "vector"], [])
        status = await collection.status()
        assert (status.fingerprint, status.coming, status.vectors, status.vectors_waiting) == (
            "words:1", "words:2", 3, 3
        )  # fmt: skip
        assert status.backlog is not None
        assert (status.backlog.done, status.backlog.total) == (0, 3)


async def test_a_group_comes_once_with_its_best_piece(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        many = Group(id="many", items=[Item(key=f"k{n}", text=f"cats and filler{n}") for n in range(60)])
        best = Group(id="best", items=[Item(key="x", text="nothing"), Item(key="y", text="cats cats cats")])
        await collection.put([many, best, group("third", "a house with cats in it and a lot of other things")])
        await embedded(collection, embedder)
        result = await ask(collection, embedder, asked("cats", limit=3, candidates=3))
        assert sorted(hit.group for hit in result.hits) == ["best", "many", "third"]
        assert next(hit.key for hit in result.hits if hit.group == "best") == "y"


def with_front_matter(name: str, title: str, front: str, *body: str) -> Group:
    head = Item(key="front", text=front, heading=title, embed=False)
    return Group(id=name, title=title, items=[head, *(Item(key=f"{n}", text=text) for n, text in enumerate(body))])


async def test_front_matter_is_shown_if_the_query_matches_it_and_otherwise_the_text(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        body = "# Sea stars\n\nA sea star grows back an arm that it has lost, within a year or two of the loss."
        await collection.put([with_front_matter("stars", "Sea stars", "author: Jane", body), *CORPUS])
        await embedded(collection, embedder)
        for method in ("weighted", "lexical", "rrf"):
            result = await ask(collection, embedder, asked("sea stars", method))
            assert (result.hits[0].group, result.hits[0].key) == ("stars", "0")
            result = await ask(collection, embedder, asked("jane", method))
            assert (result.hits[0].group, result.hits[0].key) == ("stars", "front")


async def test_a_title_counts_no_more_for_having_front_matter_beside_the_text(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    filler = " and nothing else of note" * 5
    async with opened(tmp_path) as collection:
        near = group("near", f"# Tides\n\ntides of the moon {filler}", title="Tides")
        far = with_front_matter("far", "Tides", "kind: page", f"# Tides\n\nzinc copper iron {filler}", filler)
        await collection.put([far, near, *CORPUS])
        await embedded(collection, embedder)
        result = await ask(collection, embedder, asked("tides of the moon"))
        assert [hit.group for hit in result.hits[:2]] == ["near", "far"]


async def test_a_note_too_short_for_a_vector_is_first_by_its_rare_word(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        short = Group(id="short", title="short", items=[Item(key="0", text="quokka7731", embed=False)])
        long = [group(f"n{n}", f"a note of cats and dogs number{n} " * 8) for n in range(60)]
        await collection.put([short, *long])
        await embedded(collection, embedder)
        for query in ("quokka7731", "quokka7731 note of cats and dogs"):
            assert (await ask(collection, embedder, asked(query))).hits[0].group == "short"


def crowd(count: int) -> list[Group]:
    """Notes of the same words in many orders, each with a mark that no other has."""
    filler = [f"tide{n} reef{n} kelp{n} foam{n}" for n in range(12)]
    return [
        group(f"g{n}", " ".join((*filler[n % 12 :], f"mark{n}q", *filler[: n % 12])), title=f"T{n}")
        for n in range(count)
    ]


async def test_a_note_with_a_unique_mark_is_first_in_spite_of_its_vector(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put(crowd(80))
        await embedded(collection, embedder)
        for n in range(0, 80, 4):
            other = crowd(80)[(n + 37) % 80]

            async def embed(params: EmbedTexts, timeout_s: float, other: Group = other) -> EmbedResult:
                return await embedder.embed(EmbedTexts(texts=[f"{other.title}\n{other.items[0].text}"]))

            found = await search(collection, asked(f"mark{n}q"), embed, Patience(5.0), lambda: None)
            assert [hit.group for hit in found.hits][:2] == [f"g{n}", other.id]
            assert found.hits[0].score > 0.85
            assert found.degraded == []


async def test_one_word_of_many_does_not_put_a_note_before_the_nearest_in_meaning(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        near = group("near", "sea stars grow back what they lose", title="Near")
        await collection.put([near, group("far", "hedges regrow when they are cut", title="Far"), *crowd(20)])
        await embedded(collection, embedder)

        async def embed(params: EmbedTexts, timeout_s: float) -> EmbedResult:
            return await embedder.embed(EmbedTexts(texts=["Near\nsea stars grow back what they lose"]))

        query = asked("how do urchins regrow their spines")
        found = await search(collection, query, embed, Patience(5.0), lambda: None)
        assert [hit.group for hit in found.hits][:2] == ["near", "far"]


async def test_unknown_query_coverage_of_a_note_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Fts5, terms: object, items: Sequence[int]) -> dict[int, list[str]]:
        raise WordsDamaged("database disk image is malformed")

    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        monkeypatch.setattr(Fts5, "held", fail)
        found = await ask(collection, embedder, asked("cats purr"))
        assert found.hits[0].group == "cats"
        assert found.degraded == ["lexical: database disk image is malformed"]


@pytest.mark.slow
async def test_loading_vectors_are_reported_and_words_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.retrieve.ranking.search._LOAD_WAIT_S", 0.01)
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
    collection = LocalCollection("notes", tmp_path, trio.CapacityLimiter(4))
    result = await ask(collection, embedder, asked("cats"))
    assert result.stages == ["lexical"]
    assert result.degraded == [
        "vector: vectors are still being loaded",
        "lexical: the word index is still being checked",
    ]
    collection.close()


async def test_a_note_that_is_edited_while_the_query_is_embedded_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = trio.Event()
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await filled(collection, embedder)
        await collection.put([group("edited", "zebra of yesterday")])
        await embedded(collection, embedder)

        find_words = collection.find_words

        async def noted(
            query: str, limit: int, filters: Sequence[Filter], then: Callable[[Snapshot, FoundWords], object]
        ) -> FoundWords:
            found = await find_words(query, limit, filters, then)
            looked_up.set()
            return found

        monkeypatch.setattr(collection, "find_words", noted)

        async def slow(params: EmbedTexts, timeout_s: float) -> EmbedResult:
            await looked_up.wait()
            await collection.put([group("edited", "zebra of today")])
            return await embedder.query(params, timeout_s)

        found = await search(collection, asked("zebra"), slow, Patience(5.0), lambda: None)
        assert "zebra of today" in [hit.text for hit in found.hits]
