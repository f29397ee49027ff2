"""Telling the search what contents there are, through any crash of either side.

Every change leaves the content's number in an outbox, in the same transaction.  This task takes numbers from it,
states each content as it is now (its passages, and the tags and places of the documents that hold it), and strikes
them out once the search has them on disk; killed in between, it states them again, which changes nothing.  At the
start, and whenever the search was away, both sides' lists are compared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import apsw
import trio

from proto.errors import LinckiaError
from proto.ops.documents import CORPUS
from proto.ops.retrieve import Group, Item, RetrieveDelete, RetrieveGroups, RetrievePut
from services.documents.add.add import Adding
from services.documents.store import objects, rows, texts
from services.documents.store.compress import Codec, Damaged
from services.documents.store.store import Store
from services.documents.text.passages import MAX_TEXT_CHARS, passages
from services.runtime.handlers import Environment

BATCH = 64
BATCH_BYTES = 512 * 1024
EMBEDDED = 64
"""Passages of one content that get a vector; the rest of a long one is found by words alone."""
MAX_PLACES = 32
FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0


@dataclass(frozen=True, slots=True)
class _Due:
    numbers: tuple[int, ...]
    groups: list[Group]
    gone: list[str]


class SearchFeed:
    """The task."""

    def __init__(self, env: Environment, store: Store, codec: Codec, adding: Adding) -> None:
        self._env = env
        self._adding = adding
        self._store = store
        self._codec = codec
        self._wake = trio.Event()
        self._compared = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.prefix = store.epoch.replace("-", "")[-16:] + "-"
        """Of this store's groups; another store's numbers mean other contents."""
        self.waiting: str | None = None
        """Why the feed waits at the moment."""

    def hurry(self) -> None:
        """Something may have come into the outbox."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            with self._scope:
                await self._env.after_the_rush()
                while True:
                    self._wake = trio.Event()
                    try:
                        if not self._compared:
                            await self._compare()
                        while await self._step():
                            pause_s = FIRST_PAUSE_S
                        self.waiting = None
                        await self._wake.wait()
                    except (LinckiaError, apsw.BusyError) as error:
                        # Who was away may have come back with less than it had.
                        self._compared = False
                        self.waiting = f"the search is not available: {error}"
                        await trio.sleep(pause_s)
                        pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses the databases no more."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _step(self) -> bool:
        await self._adding.give_way()
        due = await self._store.read(self._take)
        if not due.numbers:
            return False
        if due.groups:
            await self._env.call(RetrievePut(collection=CORPUS, groups=due.groups))
        if due.gone:
            await self._env.call(RetrieveDelete(collection=CORPUS, groups=due.gone))
        await self._store.write(
            lambda db: db.executemany(
                "DELETE FROM search_outbox WHERE number=?", ((number,) for number in due.numbers)
            ).fetchall()
        )
        return True

    def _take(self, db: apsw.Connection) -> _Due:
        numbers: list[int] = []
        groups: list[Group] = []
        gone: list[str] = []
        size = 0
        query = "SELECT number, object FROM search_outbox ORDER BY number LIMIT ?"
        for number, object_ in db.execute(query, (BATCH,)).fetchall():
            assert isinstance(number, int)
            assert isinstance(object_, int)
            group = self._group(db, object_)
            if group is None:
                gone.append(f"{self.prefix}{object_}")
            else:
                groups.append(group)
                size += sum(len(item.text) for item in group.items)
            numbers.append(number)
            if size > BATCH_BYTES:
                break
        return _Due(tuple(numbers), groups, gone)

    def _group(self, db: apsw.Connection, object_: int) -> Group | None:
        holders = rows.by_object(db, (object_,))[object_]
        stored = objects.by_id(db, object_)
        if not holders or stored is None:
            return None
        items: list[Item] = []
        if texts.has_text(stored):
            try:
                data = texts.beginning(db, self._codec, stored, MAX_TEXT_CHARS)
            except Damaged:
                # Reading the document says so; its name is found all the same.
                data = b""
            text = data.decode("utf-8", "replace").replace("\r\n", "\n")
            items = [
                Item(
                    key=str(number),
                    text=passage.text,
                    heading=passage.heading[:1000],
                    metadata={"first": passage.first, "last": passage.last},
                    embed=number < EMBEDDED,
                )
                for number, passage in enumerate(passages(text, holders[0].mime_type))
            ]
        if not items:
            items = [Item(key="name", text=holders[0].path, embed=False)]
        here = holders[:MAX_PLACES]
        return Group(
            id=f"{self.prefix}{object_}",
            items=items,
            title=" ".join(dict.fromkeys(one.name for one in here))[:1000],
            metadata={
                "tags": sorted({tag for one in holders for tag in one.tags}),
                "extensions": sorted({one.extension for one in holders}),
                "collections": sorted({name for one in holders for name in one.collections}),
                "sessions": sorted({one.session for one in holders if one.session is not None}),
                "folders": sorted({folder for one in here for folder in _folders(one.path)}),
            },
        )

    async def _compare(self) -> None:
        """Have the search forget what is not here, and tell it anew what it does not have."""
        theirs: set[str] = set()
        after, more = "", True
        while more:
            page = await self._env.call(RetrieveGroups(collection=CORPUS, after=after))
            theirs.update(page.ids)
            more = page.more and bool(page.ids)
            after = page.ids[-1] if page.ids else after
        ours = await self._store.read(
            lambda db: {f"{self.prefix}{id_}": id_ for (id_,) in db.execute("SELECT DISTINCT object FROM document")}
        )
        strange = sorted(theirs - ours.keys())
        for start in range(0, len(strange), 4096):
            await self._env.call(RetrieveDelete(collection=CORPUS, groups=strange[start : start + 4096]))
        missing = [ours[id_] for id_ in ours.keys() - theirs]
        if missing:
            await self._store.write(
                lambda db: db.executemany(
                    "INSERT OR IGNORE INTO search_outbox(object) VALUES(?)", ((id_,) for id_ in missing)
                ).fetchall()
            )
        self._compared = True


def _folders(path: str) -> list[str]:
    found: list[str] = []
    folder = os.path.dirname(path)
    while folder not in ("", "/"):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found
