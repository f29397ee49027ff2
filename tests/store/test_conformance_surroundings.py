"""Every store of collections knows what stands around a group, and ranks by it."""

from __future__ import annotations

import pytest

from proto.ops.retrieve import Filter, Group, Item, RetrieveSearch, Surroundings, Value
from services.retrieve import item_store
from services.retrieve.collection import Collection
from services.retrieve.postgres import reading
from tests.store.rig import Store, opened, words
from tests.unit.retrieve.rig import WordEmbedder, ask, embedded, group

AROUND = Surroundings(follows="after", whole="root")


def turn(name: str, text: str, after: str = "", **metadata: Value) -> Group:
    return group(name, text, metadata=metadata | ({"after": after} if after else {}))


class Names:
    """The groups of a collection by their numbers."""

    def __init__(self, collection: Collection, numbers: dict[str, int]) -> None:
        self._collection = collection
        self._numbers = numbers
        self._names = {number: name for name, number in numbers.items()}

    @classmethod
    async def of(cls, collection: Collection) -> Names:
        """Read those of all groups that have the word `piece`."""
        found = [item for item, _ in (await collection.find_words("piece", 1000, ())).hits]
        groups = await collection.read(lambda store: store.groups_of(found))
        items = await collection.items(found)
        return cls(collection, {items[item].group: groups[item] for item in found})

    async def linked(self, *names: str, field: str = "after") -> set[tuple[str, str]]:
        groups = [self._numbers[name] for name in names]
        found = await self._collection.read(lambda store: store.linked(groups, field))
        pairs = [(self._names[group], self._names[before]) for group, before in found]
        assert len(pairs) == len(set(pairs))
        return set(pairs)

    async def values(self, field: str, *names: str) -> dict[str, str]:
        groups = [self._numbers[name] for name in names]
        found = await self._collection.read(lambda store: store.values(groups, field))
        return {self._names[group]: value for group, value in found.items()}

    async def pieces_of(self, *names: str, filters: tuple[Filter, ...] = ()) -> dict[str, list[str]]:
        """Return the texts of the pieces by group."""
        groups = [self._numbers[name] for name in names]
        found = await self._collection.read(lambda store: store.pieces_of(groups, filters))
        items = await self._collection.items([*found])
        texts: dict[str, list[str]] = {}
        for item, number in found.items():
            texts.setdefault(self._names[number], []).append(items[item].text)
        return {name: sorted(each) for name, each in texts.items()}


async def test_groups_that_follow_each_other_are_linked_both_ways(store: Store) -> None:
    async with opened(store.engine()) as collection:
        await collection.put([
            turn("one", "piece"), turn("two", "piece", "one"), turn("three", "piece", "two"),
            turn("other", "piece", "two"), turn("lost", "piece", "nobody"), turn("nul\0", "piece", "one"),
            turn("after nul", "piece", "nul\0"), turn("number", "piece", follows=1),
            turn("elsewhere", "piece", of="one"),
        ])  # fmt: skip
        names = await Names.of(collection)
        assert await names.linked("two") == {("two", "one"), ("three", "two"), ("other", "two")}
        assert await names.linked("one") == {("two", "one"), ("nul\0", "one")}
        assert await names.linked("nul\0") == {("nul\0", "one"), ("after nul", "nul\0")}
        assert await names.linked("one", field="of") == {("elsewhere", "one")}
        for name, field in (("lost", "after"), ("number", "follows"), ("one", "nothing")):
            assert await names.linked(name, field=field) == set()
        await collection.delete(["one"])
        assert await names.linked("two") == {("three", "two"), ("other", "two")}


async def test_only_so_many_successors_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (item_store, reading):
        monkeypatch.setattr(module, "MOST_LINKED", 3)
    async with opened(store.engine()) as collection:
        await collection.put([
            turn("start", "piece"), turn("greeting", "piece", "start"),
            *(turn(f"answer {n}", "piece", "greeting") for n in range(9)),
        ])  # fmt: skip
        names = await Names.of(collection)
        found = await names.linked("greeting")
        assert ("greeting", "start") in found
        assert len(found - {("greeting", "start")}) == 3
        everybody = [f"answer {n}" for n in range(9)]
        assert await names.linked(*everybody) == {(name, "greeting") for name in everybody}


async def test_values_are_texts_only(store: Store) -> None:
    async with opened(store.engine()) as collection:
        await collection.put([
            turn("a", "piece", root="w"), turn("b", "piece", root="nul\0"), turn("c", "piece", root=3),
            turn("d", "piece"), turn("e", "piece", root=True),
        ])  # fmt: skip
        names = await Names.of(collection)
        assert await names.values("root", *"abcde") == {"a": "w", "b": "nul\0"}
        assert await names.values("root", "d") == {}


async def test_pieces_of_groups_are_those_to_embed_that_filters_admit(store: Store) -> None:
    called = Item(key="calls", text="piece that is called", embed=False)
    both = Group(id="both", items=[Item(key="0", text="piece one"), Item(key="1", text="piece two"), called],
                 metadata={"role": "user"})  # fmt: skip
    async with opened(store.engine()) as collection:
        await collection.put([both, turn("nul\0", "piece", role="assistant"), turn("third", "piece", role="user")])
        names = await Names.of(collection)
        of_both = ["piece one", "piece two"]
        assert await names.pieces_of("both", "nul\0") == {"both": of_both, "nul\0": ["piece"]}
        user = Filter(field="role", any_of=["user"])
        assert await names.pieces_of("both", "nul\0", filters=(user,)) == {"both": of_both}
        assert await names.pieces_of("nul\0", filters=(user,)) == {}
        assert await names.pieces_of() == {}


WOMBATS = [
    turn("question", "where did the wombat dig its burrow", root="w", role="user"),
    turn("answer", "down beside that creek", "question", root="w", role="assistant"),
    turn("elsewhere", "burrow or tunnel", "nothing", root="x", role="user"),
    turn("later", "burrow or tunnel", "nothing", root="w", role="user"),
    *(turn(f"f{n}", f"{a} {b} and some weather", root=f"f{n}", role="user")
      for n, (a, b) in enumerate((a, b) for a in ("rain", "snow", "wind", "hail", "fog") for b in ("today", "again"))),
]  # fmt: skip


async def _found(
    collection: Collection, embedder: WordEmbedder, around: Surroundings | None, *filters: Filter, limit: int = 4
) -> list[str]:
    asked = RetrieveSearch(
        collection="notes", query="wombat burrow", limit=limit, candidates=4, filters=[*filters], around=around
    )
    return [hit.group for hit in (await ask(collection, embedder, asked)).hits]


async def test_a_search_finds_the_turn_after_the_best_match_and_the_best_of_its_whole(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put(WOMBATS)
        await embedded(collection, embedder)
        alone = await _found(collection, embedder, None)
        # The second and the third have the same text.
        assert alone[:3] == ["question", "elsewhere", "later"]
        assert "answer" not in alone
        around = await _found(collection, embedder, AROUND)
        assert around[0] == "question"
        assert "answer" in around
        assert around.index("later") < around.index("elsewhere")
        # By the turn before it alone.
        by_one = await _found(collection, embedder, Surroundings(follows="after", whole="nothing"))
        assert by_one == ["question", "elsewhere", "later", "answer"]
        assert await words(collection, "creek") == ["answer"]


async def test_neighbours_that_a_filter_excludes_are_not_found(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put(WOMBATS)
        await embedded(collection, embedder)
        assert "answer" in await _found(collection, embedder, AROUND, limit=14)
        user = await _found(collection, embedder, AROUND, Filter(field="role", any_of=["user"]), limit=14)
        assert "answer" not in user
        assert len(user) == 13
        assistant = Filter(field="role", any_of=["assistant"])
        assert await _found(collection, embedder, AROUND, assistant) == ["answer"]
