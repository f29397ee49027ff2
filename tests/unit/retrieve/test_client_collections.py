"""Collections that clients create: documents are found by texts and by vectors, within the quota."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.retrieve import Filter, Group, Item, RetrievePut, RetrieveSearch
from services.retrieve.main import open_service
from services.retrieve.operations import (
    CollectionCount,
    CollectionCreate,
    CollectionDelete,
    CollectionDocuments,
    CollectionDrop,
    CollectionListParams,
    CollectionSearch,
    CollectionUpsert,
    Document,
)
from tests.in_process import Bench, services_in_process
from tests.postgres import PostgresServer

SCHEMAS = itertools.count()
STORE: dict[str, object] = {}
"""Settings of the store under test."""


@pytest.fixture(autouse=True, params=["local", "postgres"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    STORE.clear()
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        monkeypatch.setenv("SERVER_OF_TESTS", server.dsn)
        STORE.update(store="postgres", dsn_env="SERVER_OF_TESTS", schema=f"test_{next(SCHEMAS)}")
    name: str = request.param
    return name


SETTINGS = {"rerank": "off", "collections": 3, "collection_documents": 5, "collection_bytes": 2000}


@contextlib.asynccontextmanager
async def retrieve(folder: Path, **settings: object) -> AsyncIterator[Bench]:
    """The service alone: nothing embeds."""
    async with services_in_process(
        {"retrieve": open_service}, folder, settings={"retrieve": SETTINGS | STORE | settings}
    ) as bench:
        yield bench


def doc(id_: str, text: str = "", vector: list[float] | None = None, **payload: Any) -> Document:
    return Document(id=id_, text=text, vector=vector, payload=payload)


async def words(bench: Bench, query: str, name: str = "mine") -> list[str]:
    found = await bench.call(CollectionSearch(collection=name, query=query))
    return [hit.id for hit in found.hits]


async def test_documents_are_put_found_counted_read_and_deleted_by_their_payload(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        made = await bench.call(CollectionCreate(collection="mine"))
        assert (made.dimensions, made.documents, made.bytes) == (None, 0, 0)
        put = await bench.call(
            CollectionUpsert(
                collection="mine",
                documents=[doc("a", "red apples", colour="red", size=3), doc("b", "green pears", colour="green")],
            )
        )
        assert (put.upserted, put.documents, put.vectors_waiting) == (2, 2, 2)
        assert await words(bench, "apples") == ["a"]
        green = [Filter(field="colour", any_of=["green"])]
        found = await bench.call(CollectionSearch(collection="mine", query="apples pears", filters=green))
        assert [(hit.id, hit.payload, hit.text) for hit in found.hits] == [("b", {"colour": "green"}, "green pears")]
        assert (await bench.call(CollectionCount(collection="mine", filters=green))).documents == 1
        page = await bench.call(CollectionDocuments(collection="mine", limit=1))
        assert (page.more, page.documents[0]) == (True, doc("a", "red apples", colour="red", size=3))
        page = await bench.call(CollectionDocuments(collection="mine", after="a"))
        assert (page.more, [each.id for each in page.documents]) == (False, ["b"])
        page = await bench.call(CollectionDocuments(collection="mine", ids=["b", "nowhere"]))
        assert [each.id for each in page.documents] == ["b"]
        gone = await bench.call(CollectionDelete(collection="mine", filters=green))
        assert (gone.deleted, gone.documents) == (1, 1)
        gone = await bench.call(CollectionDelete(collection="mine", ids=["b", "nowhere"]))
        assert (gone.deleted, gone.documents) == (0, 1)
        assert await words(bench, "pears") == []


async def test_a_document_is_replaced_as_a_whole_and_counts_once(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        await bench.call(CollectionCreate(collection="mine"))
        await bench.call(CollectionUpsert(collection="mine", documents=[doc("a", "red apples", colour="red")]))
        (held,) = (await bench.call(CollectionListParams())).collections
        await bench.call(CollectionUpsert(collection="mine", documents=[doc("a", "green pears")]))
        assert (await words(bench, "apples"), await words(bench, "pears")) == ([], ["a"])
        (now,) = (await bench.call(CollectionListParams())).collections
        # `{"colour":"red"}` and `{}`, and one letter.
        assert (now.documents, held.bytes - now.bytes) == (1, 14 - 1)
        await bench.call(CollectionDelete(collection="mine", ids=["a"]))
        assert [each.bytes for each in (await bench.call(CollectionListParams())).collections] == [0]


async def test_vectors_are_found_by_vectors_at_any_length_and_never_embedded(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        await bench.call(CollectionCreate(collection="mine", dimensions=3))
        same = "the same words"
        put = await bench.call(
            CollectionUpsert(
                collection="mine",
                documents=[doc("x", same, [2, 0, 0]), doc("y", same, [0, 1e-200, 0]), doc("z", "", [0, 1e200, 1e200])],
            )
        )
        assert put.vectors_waiting == 0
        found = await bench.call(CollectionSearch(collection="mine", vector=[0, 5, 0]))
        assert [hit.id for hit in found.hits] == ["y", "z", "x"]
        assert [hit.similarity for hit in found.hits] == pytest.approx([1, 0.5**0.5, 0], abs=1e-3)
        assert (found.stages, found.degraded) == (["vector"], [])
        assert sorted(await words(bench, "same words")) == ["x", "y"]
        both = await bench.call(CollectionSearch(collection="mine", vector=[1, 0, 0], query="same words"))
        assert (both.hits[0].id, both.stages) == ("x", ["lexical", "vector"])
        await bench.call(CollectionUpsert(collection="mine", documents=[doc("x", same, [0, 0, 1])]))
        found = await bench.call(CollectionSearch(collection="mine", vector=[0, 0, 1], limit=1))
        assert [hit.id for hit in found.hits] == ["x"]
    async with retrieve(tmp_path) as bench:
        found = await bench.call(CollectionSearch(collection="mine", vector=[0, 0, 1], limit=1))
        assert [hit.id for hit in found.hits] == ["x"]
        (now,) = (await bench.call(CollectionListParams())).collections
        assert (now.dimensions, now.documents, now.vectors_waiting) == (3, 3, 0)


REFUSED: list[tuple[int | None, Document, str]] = [
    (None, doc("a", "text", [1.0]), "documents[1].vector"),
    (None, doc("a", " "), "documents[1].text"),
    (3, doc("a", "text"), "documents[1].vector"),
    (3, doc("a", "", [1, 2]), "documents[1].vector"),
    (3, doc("a", "", [0, 0, 0]), "documents[1].vector"),
    (3, doc("a", "", [1, float("nan"), 0]), "documents[1].vector"),
    (3, doc("a", "", [1, float("inf"), 0]), "documents[1].vector"),
    (3, doc("first", "", [1, 0, 0]), "documents[1].id"),
    (None, doc("a", "text", size=float("nan")), "documents[1].payload.size"),
]


@pytest.mark.parametrize(("dimensions", "bad", "field"), REFUSED)
async def test_invalid_documents_are_refused_with_the_field_and_change_nothing(
    tmp_path: Path, dimensions: int | None, bad: Document, field: str
) -> None:
    good = doc("first", "text", None if dimensions is None else [1, 0, 0])
    async with retrieve(tmp_path) as bench:
        await bench.call(CollectionCreate(collection="mine", dimensions=dimensions))
        with pytest.raises(InvalidParams) as refused:
            await bench.call(CollectionUpsert(collection="mine", documents=[good, bad]))
        assert refused.value.failure.field == field
        assert (await bench.call(CollectionCount(collection="mine"))).documents == 0


async def test_searches_that_do_not_fit_the_collection_name_what_it_accepts(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        await bench.call(CollectionCreate(collection="texts"))
        await bench.call(CollectionCreate(collection="vectors", dimensions=2))
        for asked, said in (
            (CollectionSearch(collection="texts", vector=[1.0, 2.0]), "takes text"),
            (CollectionSearch(collection="vectors", vector=[1.0]), "takes vectors of 2 numbers"),
            (CollectionSearch(collection="vectors"), "`query` is blank"),
            (CollectionSearch(collection="nowhere", query="x"), "there are: texts, vectors"),
            (CollectionDelete(collection="texts"), "either `ids` or `filters`"),
            (CollectionCreate(collection="texts", dimensions=2), "takes text"),
            (CollectionCreate(collection="vectors", dimensions=3), "takes vectors of 2 numbers"),
        ):
            with pytest.raises(InvalidParams, match=said):
                await bench.call(asked)
        again = await bench.call(CollectionCreate(collection="vectors", dimensions=2))
        assert again.dimensions == 2


async def test_collections_documents_and_bytes_have_a_quota_and_exceeding_it_changes_nothing(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        for name in "abc":
            await bench.call(CollectionCreate(collection=name))
        with pytest.raises(OperationError, match="the quota is 3 "):
            await bench.call(CollectionCreate(collection="d"))
        assert (await bench.call(CollectionDrop(collection="c"))).dropped
        await bench.call(CollectionCreate(collection="d"))
        five = [doc(str(n), f"text number {n}") for n in range(5)]
        await bench.call(CollectionUpsert(collection="a", documents=five))
        with pytest.raises(OperationError, match=r"would hold 6 documents, but the quota is 5 "):
            await bench.call(CollectionUpsert(collection="a", documents=[five[0], doc("5", "one more")]))
        assert await words(bench, "more", "a") == []
        with pytest.raises(OperationError, match=r"bytes, but the quota is 2,000 "):
            await bench.call(CollectionUpsert(collection="a", documents=[doc("4", "long " * 400)]))
        # Replacements of existing documents fit, and deletions make room.
        await bench.call(CollectionUpsert(collection="a", documents=five))
        await bench.call(CollectionDelete(collection="a", ids=["0"]))
        await bench.call(CollectionUpsert(collection="a", documents=[doc("5", "one more")]))
        assert await words(bench, "more", "a") == ["5"]


async def test_client_collections_and_service_collections_have_separate_names(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        theirs = Group(id="note", items=[Item(key="1", text="a secret note", embed=False)])
        await bench.call(RetrievePut(collection="notes", groups=[theirs]))
        with pytest.raises(InvalidParams, match="there are: none"):
            await bench.call(CollectionSearch(collection="notes", query="secret"))
        await bench.call(CollectionCreate(collection="notes"))
        assert await words(bench, "secret", "notes") == []
        await bench.call(CollectionUpsert(collection="notes", documents=[doc("mine", "a secret of mine")]))
        found = await bench.call(RetrieveSearch(collection="notes", query="secret"))
        assert [hit.group for hit in found.hits] == ["note"]
        await bench.call(CollectionDrop(collection="notes"))
        found = await bench.call(RetrieveSearch(collection="notes", query="secret"))
        assert [hit.group for hit in found.hits] == ["note"]


async def test_a_collection_that_was_dropped_leaves_no_file_and_may_be_created_in_another_shape(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        await bench.call(CollectionCreate(collection="mine"))
        await bench.call(CollectionUpsert(collection="mine", documents=[doc("a", "red apples")]))
        assert [(await bench.call(CollectionDrop(collection="mine"))).dropped for _ in range(2)] == [True, False]
        assert list((tmp_path / "retrieve").glob("own.*")) == []
        await bench.call(CollectionCreate(collection="mine", dimensions=2))
        assert (await bench.call(CollectionCount(collection="mine"))).documents == 0


async def test_a_drop_waits_for_calls_in_flight_and_concurrent_calls_are_answered(tmp_path: Path) -> None:
    async with retrieve(tmp_path, collection_documents=1000, collection_bytes=10**6) as bench:
        await bench.call(CollectionCreate(collection="mine"))
        answered: list[str] = []

        async def put(n: int) -> None:
            try:
                await bench.call(CollectionUpsert(collection="mine", documents=[doc(str(n), f"text {n}")]))
                answered.append("put")
            except LinckiaError as error:
                answered.append(error.failure.message)

        async with trio.open_nursery() as nursery:
            for n in range(30):
                nursery.start_soon(put, n)
                if n == 15:
                    nursery.start_soon(bench.call, CollectionDrop(collection="mine"))
        assert len(answered) == 30
        assert all(each == "put" or "'mine' does not exist" in each for each in answered)
        assert bench.failures == []


@pytest.mark.parametrize("store", ["local"], indirect=True)
async def test_a_partly_created_collection_does_not_count_and_can_be_created(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        await bench.call(CollectionCreate(collection="mine", dimensions=2))
    # As a kill leaves it between its file and its first row.
    with contextlib.closing(apsw.Connection(str(tmp_path / "retrieve" / "own.mine.db"))) as db:
        db.execute("DELETE FROM meta WHERE key LIKE 'own%'; DELETE FROM meta WHERE key = 'model'")
    async with retrieve(tmp_path) as bench:
        assert (await bench.call(CollectionListParams())).collections == []
        with pytest.raises(InvalidParams, match="'mine' does not exist"):
            await bench.call(CollectionCount(collection="mine"))
        made = await bench.call(CollectionCreate(collection="mine"))
        assert made.dimensions is None


async def test_a_long_text_is_cut_into_pieces_that_the_model_reads_and_given_back_whole(tmp_path: Path) -> None:
    text = "  \n" + " ".join(f"word{n}\n" for n in range(1000)) + " "
    async with retrieve(tmp_path, collection_bytes=10**6) as bench:
        await bench.call(CollectionCreate(collection="mine"))
        put = await bench.call(CollectionUpsert(collection="mine", documents=[doc("a", text)]))
        assert (put.documents, put.vectors_waiting > 5) == (1, True)
        found = await bench.call(CollectionSearch(collection="mine", query="word999"))
        assert "word999" in found.hits[0].text
        assert len(found.hits[0].text) < len(text) / 5
        (whole,) = (await bench.call(CollectionDocuments(collection="mine"))).documents
        assert whole.text == text
        (held,) = (await bench.call(CollectionListParams())).collections
        assert held.bytes == len(text) + len("a") + len("{}")
        await bench.call(CollectionUpsert(collection="mine", documents=[doc("a", "short")]))
        (held,) = (await bench.call(CollectionListParams())).collections
        assert (held.bytes, held.vectors_waiting) == (8, 1)


def test_a_document_has_no_other_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `txt`"):
        msgspec.convert({"id": "a", "txt": "b"}, Document)


@pytest.mark.parametrize("store", ["local"], indirect=True)
async def test_a_damaged_collection_is_kept_and_named_and_the_others_are_as_they_were(tmp_path: Path) -> None:
    async with retrieve(tmp_path) as bench:
        for name in ("bad", "good"):
            await bench.call(CollectionCreate(collection=name))
            await bench.call(CollectionUpsert(collection=name, documents=[doc("a", "red apples")]))
    file = tmp_path / "retrieve" / "own.bad.db"
    file.write_bytes(b"no database at all" * 1000)
    async with retrieve(tmp_path) as bench:
        bad, good = (await bench.call(CollectionListParams())).collections
        assert (bad.collection, bool(bad.trouble), good.documents, good.trouble) == ("bad", True, 1, "")
        with pytest.raises(LinckiaError, match="bad"):
            await bench.call(CollectionSearch(collection="bad", query="apples"))
        assert await words(bench, "apples", "good") == ["a"]
        # Perhaps it can be saved: nothing begins it again.
        assert file.read_bytes().startswith(b"no database")
        assert (await bench.call(CollectionDrop(collection="bad"))).dropped
        assert [each.collection for each in (await bench.call(CollectionListParams())).collections] == ["good"]
