"""The interface to what stores a collection: SQLite files on this machine (`local_store`), or PostgreSQL (`postgres`).

`tests/store` has the tests that every store must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from proto.ops.retrieve import Filter, Group, GroupIds
from services.retrieve.index.vectors import HalfMatrix, Matrix, Scored
from services.retrieve.item_store import Change, ItemDetails, Metadata
from services.retrieve.vector_store import Model, Progress, Waiting

GroupNumbers = npt.NDArray[np.int64]


class VectorsLoading(Exception):
    """The vectors are still being read from the collection."""


class FoundWords(NamedTuple):
    """Results of a word search."""

    hits: list[tuple[int, float]]
    """Item ids and BM25 scores, best first."""
    unchecked: bool
    """True if the index was not checked yet, so that hits may be missing."""


class SearchedVectors(Protocol):
    """The vectors of one model, as a search found them when it embedded its query."""

    @property
    def model(self) -> Model: ...

    def __len__(self) -> int: ...


class StoredGroup(NamedTuple):
    """A group as it was put."""

    id: str
    title: str
    names: str
    metadata: Metadata
    pieces: list[Piece]


class Piece(NamedTuple):
    """An item as it was put, with its vector of the searched model (float16, little-endian), if it has one."""

    key: str
    heading: str
    text: str
    metadata: Metadata
    embed: bool
    vector: bytes | None


class Snapshot(Protocol):
    """One consistent view of a collection, used by one worker thread.  Every method blocks.

    An item's id identifies one content: an item whose text changes gets a new id, and no id is used twice. Ids that no
    longer exist are ignored.
    """

    # Words

    def find_words(self, query: str, limit: int, filters: Sequence[Filter]) -> FoundWords:
        """Search for words.  Any text is a valid query.  Raises WordsDamaged."""

    def weights(self, query: str) -> dict[str, float]:
        """Return the words of a query with their inverse document frequency, at least 0.1.  Raises WordsDamaged."""

    def held(self, terms: Iterable[str], items: Sequence[int]) -> dict[int, list[str]]:
        """Map each item to those of `terms` that it holds.  Raises WordsDamaged."""

    # Vectors

    def nearest(self, index: SearchedVectors, query: Matrix, limit: int, filters: Sequence[Filter]) -> Scored:
        """Return the ids and cosines of the items nearest to `query`, among those that the filters admit, best first.

        As many as asked, if there are so many.
        """

    def cosines(self, index: SearchedVectors, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        """Return the cosines of those of `ids` that have a vector."""

    def group_vectors(self, model: Model) -> Iterator[tuple[GroupNumbers, HalfMatrix]]:
        """Yield ascending group numbers and the vectors of their items, in chunks."""

    # Items and groups

    def groups_of(self, ids: Sequence[int]) -> dict[int, int]:
        """Map items to the numbers of their groups."""

    def siblings(self, ids: Sequence[int]) -> dict[int, list[int]]:
        """Map items to the others of their group that have a vector.  Items without such siblings are omitted."""

    def linked(self, groups: Sequence[int], field: str) -> list[tuple[int, int]]:
        """Return pairs of groups, the second of which is named by the metadata `field` of the first.

        These are the pairs whose first or second group is among `groups`.
        """

    def values(self, groups: Sequence[int], field: str) -> dict[int, str]:
        """Map groups to their metadata `field`, if it is a text."""

    def pieces_of(self, groups: Sequence[int], filters: Sequence[Filter]) -> dict[int, int]:
        """Map the items with text to embed of those of the groups that the filters admit to their groups."""

    def never_embedded(self, ids: Sequence[int]) -> set[int]:
        """Return the items that are not to be embedded."""

    def items(self, ids: Sequence[int], full: int | None = None) -> dict[int, ItemDetails]:
        """Return items with their groups.  Only the first `full` include text."""

    def beginnings(self, ids: Sequence[int], chars: int) -> list[str]:
        """Return the first `chars` characters of each item's text."""

    def successors(self, gone: Mapping[int, ItemDetails]) -> dict[int, ItemDetails]:
        """Map removed items to a replacement from the same group: the piece under the same heading, else the first."""

    def group_ids(self, after: str, limit: int) -> GroupIds:
        """Return group ids greater than `after`, in code point order."""

    def group_names(self) -> dict[int, str]:
        """Map the numbers of all groups to their ids."""

    def count_groups(self, filters: Sequence[Filter]) -> int:
        """Count the groups that the filters admit."""

    def matching(
        self, filters: Sequence[Filter], after: str = "", among: Sequence[str] = (), limit: int = -1
    ) -> list[str]:
        """Return the ids of groups that the filters admit, sorted: those greater than `after`, and in `among` if given.

        A `limit` of -1 means all.
        """

    def contents(self, ids: Sequence[str]) -> list[StoredGroup]:
        """Return the groups with these ids, in the order of `ids`."""

    def sizes(self, ids: Sequence[str]) -> tuple[int, int]:
        """Return how many of these groups exist, and the sum of `bytes` in the metadata of their items."""

    def counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of groups, items, searched vectors, and items whose embedding has failed."""

    # State

    def meta(self, key: str) -> str | None:
        """Return a value of the collection's own."""

    def progress(self) -> Progress: ...

    def current_model(self) -> Model | None:
        """Return the model whose vectors are searched; None before the first."""

    # The outbox: items that wait for a vector

    def waiting(self, now: float, limit: int) -> list[Waiting]:
        """Return items that are due at `now` (Unix time), the longest-waiting first."""

    def waiting_of(self, now: float, groups: Iterable[str], limit: int) -> list[Waiting]:
        """Return items that are due at `now` (Unix time), taking the groups in order."""

    def waiting_before(self, now: float, before: int, limit: int) -> list[Waiting]:
        """Return items that are due at `now` (Unix time) and whose ids are less than `before`, greatest ids first."""

    def without_vector(self, limit: int) -> list[Waiting]:
        """Return items that have no vector of any model yet."""


class Transaction(Snapshot, Protocol):
    """A snapshot in which changes are made, all of them or none."""

    def take_turns(self) -> None:
        """Wait until no other transaction that called this is open, so what it reads from now on stays as it is."""

    def put(self, groups: Sequence[Group]) -> Change:
        """Replace the content of `groups`, which passed `item_store.check`.  Unchanged items keep their vectors."""

    def delete(self, ids: Sequence[str]) -> Change:
        """Remove the groups with these ids."""

    def settle(self, fingerprint: str, done: Sequence[tuple[Waiting, bytes]]) -> Change:
        """Store vectors of the model `fingerprint`, if it is in use, for items whose words have not changed."""

    def postpone(self, item: Waiting, until: float, error: str) -> None:
        """Record a failed attempt, and retry the item at `until` (Unix time)."""

    def remember(self, key: str, value: str) -> None:
        """Set a value of the collection's own."""

    def forget(self, key: str) -> None:
        """Remove a value of the collection's own."""

    def set_epoch(self, epoch: str) -> None:
        """Give the collection the identity of another one, of which it is a copy."""

    def adopt_model(self, fingerprint: str, dimensions: int) -> None:
        """Start making vectors of this model for every item.

        If there are vectors of another model, they are searched until the new ones are complete.
        """
