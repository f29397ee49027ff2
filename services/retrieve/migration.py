"""Moves collections between the files of this machine and a PostgreSQL server, while they are used.

A copy is filled page by page; how far it is, is stored in it, so an interrupted migration resumes. Then both are
compared as a whole, and whatever differs is copied again, as often as it takes. At last the collection is frozen for
the moment in which the groups that were changed meanwhile are copied, and its name is given to the copy.

Vectors are copied, not made again. A piece whose vector is not in the copy waits in the outbox there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from proto.errors import Unavailable
from proto.ops.retrieve import Group, Item
from services.retrieve.collection import CLIENT_VECTORS, Collection
from services.retrieve.item_store import ItemWithVector, hash_of
from services.retrieve.open_collections import Collections
from services.retrieve.operations import Moving
from services.retrieve.places import Copying, Places
from services.retrieve.store import Snapshot, StoredGroup, Transaction
from services.retrieve.vector_store import Model

PAGE = 200
"""Groups that are copied in one transaction."""

FEW = 500
"""With at most this many groups changed since the comparison, the collection is frozen and the rest is copied."""

_AFTER, _COPIED = "migrated_after", "migrated"
"""Keys in the copy: how far it was filled, and how many groups that were."""


class _Comparison:
    """How far the copy of a collection was compared with it, and what was changed since that began."""

    def __init__(self, changed: set[str]) -> None:
        self.changed = changed
        """The set in which the collection notes its changes."""
        self.after = ""
        self.backwards = False
        """Whether all that the collection has was compared, and now what only the copy has is looked for."""
        self.done = False
        self.rounds = 0
        """In how many calls the changes since could not be copied, because more came."""


class Migration:
    """Moves the collections of one kind."""

    def __init__(self, collections: Collections, places: Places) -> None:
        self._collections = collections
        self._places = places
        self._moving = trio.Lock()
        self._comparisons: dict[str, _Comparison] = {}

    async def names(self) -> list[str]:
        """Return the names of all collections, wherever they are."""
        return await self._collections.names()

    async def waiting(self, *, to_server: bool, only: str) -> list[str]:
        """Return the names of the collections that are not there yet."""
        names = await (self._places.local if to_server else self._places.server).names()
        if to_server:
            # These only have to stay there.
            names = sorted({*names, *await self._places.begun()})
        return [name for name in names if only in ("", name)]

    async def work(self, name: str, *, to_server: bool, until: float) -> Moving:
        """Move one collection as far as it gets until `until` (trio time).

        Raises:
            OperationError: the server has another collection of this name.
            Unavailable: the server cannot be reached; calling again resumes.
        """
        async with self._moving:
            source = await self._collections.find(name)
            place = self._places.server if to_server else self._places.local
            if source is None or await self._places.place(name) is place:
                if to_server:
                    await self._places.stay(name)
                return Moving(collection=name, done=True)
            begun = self._comparisons.get(name)
            if begun is None or begun.changed is not source.changed:
                # Another process may have changed anything since.
                source.changed = set()
                self._comparisons[name] = _Comparison(source.changed)
            self._places.moving.add(name)
            try:
                target, copying = await self._places.begin_copy(name, to_server=to_server)
                try:
                    return await self._step(source, target, copying, until)
                except BaseException:
                    # Some of the changes may have been taken note of, but not copied.
                    self._comparisons.pop(name, None)
                    raise
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(target.close)
            finally:
                self._places.moving.discard(name)

    async def _step(self, source: Collection, target: Collection, copying: Copying, until: float) -> Moving:
        name = source.name
        total = await source.read(lambda store: store.count_groups(()))
        await _adopt(source, target)
        while not await self._fill(source, target):
            if trio.current_time() >= until:
                break
        copied = int(await target.read(lambda store: store.meta(_COPIED)) or 0)
        if await target.read(lambda store: store.meta(_AFTER)) != _END:
            return Moving(collection=name, copied=min(copied, total), groups=total)
        comparison = self._comparisons[name]
        unfinished = Moving(collection=name, copied=total, groups=total, comparing=True)
        if not await _compare(source, target, comparison, until):
            return unfinished
        comparison.changed.update(await source.changed_by_others())
        comparison.rounds += 1
        # If the writers are faster, the collection is frozen all the same, for a longer moment each time.
        if not await _catch_up(source, target, comparison.changed, FEW * 2**comparison.rounds, until):
            return unfinished
        await self._collections.swap(name, lambda: self._last(source, target, comparison.changed, copying))
        del self._comparisons[name]
        return Moving(collection=name, copied=total, groups=total, done=True)

    async def _fill(self, source: Collection, target: Collection) -> bool:
        """Copy the next page; return whether that was the last one."""
        after = await target.read(lambda store: store.meta(_AFTER))
        if after == _END:
            return True
        begun = after or _START
        ids = await source.read(lambda store: store.matching((), begun[1:], (), PAGE))
        contents = await source.read(lambda store: store.contents(ids))
        model = source.model
        copied = int(await target.read(lambda store: store.meta(_COPIED)) or 0) + len(contents)

        def put(store: Transaction) -> None:
            _put(store, contents, model)
            store.remember(_AFTER, f"{_START}{ids[-1]}" if ids else _END)
            store.remember(_COPIED, str(copied))

        await target.write(put)
        return not ids

    async def _last(self, source: Collection, target: Collection, changed: set[str], copying: Copying) -> None:
        """Copy what changed last, check the copy, and let it take the collection's place.  `source` is frozen."""
        await self._places.freeze(copying)
        changed.update(await source.changed_by_others())
        await _catch_up(source, target, changed, 0, math.inf, frozen=True)
        counts = [(await each.read_frozen(_counts)) for each in (source, target)]
        if counts[0] != counts[1]:
            del self._comparisons[source.name]
            raise Unavailable(
                f"the copy of {source.name} has {counts[1]} groups and pieces, not {counts[0]}; it is compared again",
                retry_after_ms=100,
            )
        kept = await source.read_frozen(_own_state)

        def finish(store: Transaction) -> None:
            for key in (_AFTER, _COPIED):
                store.forget(key)
            for key, value in kept.items():
                store.remember(key, value)
            # Otherwise those who feed it would begin again.
            store.set_epoch(source.epoch)

        await target.write(finish)
        await trio.to_thread.run_sync(source.close)
        await trio.to_thread.run_sync(target.close)
        await self._places.take_place(copying)


_START, _END = ">", "="
"""Before the id after which the next page begins; and instead of it once all pages were copied."""

OWN_STATE = ("own", "own_bytes", "refilling")
"""What collections of clients store about themselves, and why a collection is incomplete."""


def _counts(store: Snapshot) -> tuple[int, int]:
    groups, items, _, _ = store.counts()
    return groups, items


def _own_state(store: Snapshot) -> dict[str, str]:
    return {key: value for key in OWN_STATE if (value := store.meta(key)) is not None}


async def _adopt(source: Collection, target: Collection) -> None:
    """Let the copy have the model of the original."""
    if source.model is not None and target.model is None:
        fingerprint, dimensions = source.model.fingerprint, source.model.dimensions
        await target.write(lambda store: store.adopt_model(fingerprint, dimensions))
        await target.adopt(fingerprint, dimensions)


def _put(store: Transaction, contents: Sequence[StoredGroup], model: Model | None) -> None:
    """Store groups with their vectors, inside the caller's transaction."""
    if not contents:
        return
    given = model is not None and model.fingerprint.startswith(CLIENT_VECTORS)
    groups = [_group(content, given=given) for content in contents]
    store.put(groups)
    if given or model is None:
        return
    vectors = {
        hash_of(group.title, item): piece.vector
        for group, content in zip(groups, contents, strict=True)
        for item, piece in zip(group.items, content.pieces, strict=True)
        if piece.vector is not None
    }
    waiting = store.waiting_of(math.inf, [group.id for group in groups], 10**9)
    store.settle(
        model.fingerprint, [(each, vector) for each in waiting if (vector := vectors.get(each.hash)) is not None]
    )


def _group(content: StoredGroup, *, given: bool) -> Group:
    items: list[Item] = []
    for piece in content.pieces:
        said = {
            "key": piece.key, "heading": piece.heading, "text": piece.text,
            "metadata": piece.metadata, "embed": piece.embed,
        }  # fmt: skip
        if given and piece.vector is not None:
            items.append(ItemWithVector(**said, vector=piece.vector))  # type: ignore[arg-type]  # each has its own type
        else:
            items.append(Item(**said))  # type: ignore[arg-type]  # each has its own type
    return Group(
        id=content.id, title=content.title, names=content.names, metadata=content.metadata, items=items
    )  # fmt: skip


async def _copy(source: Collection, target: Collection, ids: Sequence[str], *, frozen: bool = False) -> None:
    """Make the copies of these groups what their originals are."""
    read = source.read_frozen if frozen else source.read
    contents = await read(lambda store: store.contents(ids))
    gone = sorted({*ids} - {content.id for content in contents})
    model = source.model

    def put(store: Transaction) -> None:
        store.delete(gone)
        _put(store, contents, model)

    await target.write(put)


async def _catch_up(
    source: Collection, target: Collection, changed: set[str], few: int, until: float, *, frozen: bool = False
) -> bool:
    """Copy what was changed until `few` are left; return whether that was reached before `until` (trio time)."""
    while len(changed) > few:
        some = sorted(changed)[:PAGE]
        # Before they are read, as they may change again.
        changed.difference_update(some)
        try:
            await _copy(source, target, some, frozen=frozen)
        except BaseException:
            changed.update(some)
            raise
        # At the end, so that each call does something.
        if trio.current_time() >= until:
            break
    return len(changed) <= few


async def _compare(source: Collection, target: Collection, comparison: _Comparison, until: float) -> bool:
    """Compare every group of both, page by page, and copy those that differ.

    Returns whether all were compared before `until` (trio time); the next call goes on.
    """
    while not comparison.done:
        after = comparison.after
        original = target if comparison.backwards else source
        ids = await original.read(lambda store: store.matching((), after, (), PAGE))  # noqa: B023
        if not ids:
            comparison.done, comparison.backwards, comparison.after = comparison.backwards, True, ""
        else:
            await _copy_differing(source, target, ids, backwards=comparison.backwards)
            comparison.after = ids[-1]
        # At the end, so that each call does something.
        if trio.current_time() >= until:
            break
    return comparison.done


async def _copy_differing(source: Collection, target: Collection, ids: Sequence[str], *, backwards: bool) -> None:
    """Copy those of `ids` that differ, or that only the copy has."""
    if backwards:
        # Whatever both have was compared before.
        there = set(await source.read(lambda store: store.matching((), "", ids)))
        differing = [id_ for id_ in ids if id_ not in there]
    else:
        ours, theirs = [
            {each.id: each for each in await of.read(lambda store: store.contents(ids))} for of in (source, target)
        ]
        differing = [id_ for id_ in ids if id_ in ours and not _same(ours[id_], theirs.get(id_))]
    if differing:
        await _copy(source, target, differing)


def _same(ours: StoredGroup, theirs: StoredGroup | None) -> bool:
    if theirs is None or ours[:4] != theirs[:4] or len(ours.pieces) != len(theirs.pieces):
        return False
    return all(
        a[:5] == b[:5] and (a.vector is None or a.vector == b.vector)
        for a, b in zip(ours.pieces, theirs.pieces, strict=True)
    )
