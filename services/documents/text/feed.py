"""The crash-safe feed of contents to the search service.

Every change puts the content's id into an outbox. A delivery contains the current state of a content: its passages, and
the tags and locations of the documents that hold it. If texts would now be cut differently, because the model's window
changed, all contents are delivered again once the outbox is empty, no faster than they are embedded. The search uses
the old passages until then.
"""

from __future__ import annotations

import functools
from pathlib import PurePosixPath

import apsw
import trio

from proto.ops.documents.reading import CORPUS
from proto.ops.retrieve import Group, Item, RetrieveStatus
from services.documents.add.add import Adding
from services.documents.store import rows, texts
from services.documents.store.databases import Store
from services.documents.text.file_names import tells
from services.documents.text.passages import MAX_TEXT_CHARS, VERSION, embedded, passages
from services.runtime.handlers import Environment
from services.runtime.storage import Damaged
from services.shared.models.measure import Measure, measure
from services.shared.search_feed import Due, SearchFeed
from services.shared.text import cutting

BATCH = 64
BATCH_BYTES = 512 * 1024
CUT_BATCH = 16
"""Contents per batch of a re-cut; new contents wait at most for one such batch."""
MAX_PLACES = 32


class ContentFeed(SearchFeed):
    """The feed of contents to the search service."""

    def __init__(self, env: Environment, store: Store, adding: Adding) -> None:
        super().__init__(env, store, CORPUS, table="search_outbox")
        self._adding = adding
        self._store = store
        self._is_cut = False
        """Whether the search has all contents as they would be cut now."""

    @property
    def prefix(self) -> str:
        """The prefix of this store's group ids, as ids of another store mean other contents.  Raises Damaged."""
        if not self._store.epoch:
            raise Damaged(self._store.packs.damage)
        return self._store.epoch.replace("-", "")[-16:] + "-"

    def stored(self, db: apsw.Connection) -> int:
        return int(db.execute("SELECT count(DISTINCT object) FROM document").get)

    def reconcile(self, db: apsw.Connection, theirs: set[str]) -> list[str]:
        prefix = self.prefix
        ours = {f"{prefix}{id_}": id_ for (id_,) in db.execute("SELECT DISTINCT object FROM document")}
        missing = [(ours[id_],) for id_ in ours.keys() - theirs]
        db.executemany("INSERT OR IGNORE INTO search_outbox(object) VALUES(?)", missing)
        return sorted(theirs - ours.keys())

    async def take(self) -> Due | None:
        """Return the next contents of the outbox or, if it is empty, of those to be cut again."""
        await self._adding.give_way()
        due = await super().take()
        if due is None and not self._is_cut:
            held = await self.env.call(RetrieveStatus(collection=CORPUS))
            if held.vectors and held.vectors_waiting - held.vectors_failed > cutting.AHEAD:
                return None
            due = await self._store.read(self._cut_again)
            self._is_cut = due is None
        return due

    async def cut_again(self) -> None:
        """Deliver contents again that were cut differently, until all are done."""
        while not self._is_cut:
            await trio.sleep(cutting.AGAIN_S)
            self.outbox.hurry()

    @functools.cached_property
    def _measure(self) -> Measure:
        return measure(self.env.settings)

    def due(self, db: apsw.Connection) -> Due | None:
        numbers: list[int] = []
        groups: list[Group] = []
        gone: list[str] = []
        size = 0
        for number, object_ in db.execute("SELECT number, object FROM search_outbox ORDER BY number LIMIT ?", (BATCH,)):
            group = self._group(db, object_)
            if group is None:
                gone.append(f"{self.prefix}{object_}")
            else:
                groups.append(group)
                size += sum(len(item.text) for item in group.items)
            numbers.append(number)
            if size > BATCH_BYTES:
                break
        return Due(tuple(numbers), groups, gone) if numbers else None

    def _cut_again(self, db: apsw.Connection) -> Due | None:
        """Return the next contents whose passages may have changed."""
        now = f"{cutting.VERSION}.{VERSION}.{self._measure.signature}"
        settings = dict(db.execute("SELECT name, value FROM setting WHERE name IN ('cut', 'cutting')"))
        if settings.get("cut") == now:
            return None
        signature, _, after = settings.get("cutting", "").partition(" ")
        query = "SELECT DISTINCT object FROM document WHERE object > ? ORDER BY object LIMIT ?"
        last = int(after) if signature == now else 0
        ids = [] if settings.get("cut") == "" else [id_ for (id_,) in db.execute(query, (last, CUT_BATCH))]
        if not ids:
            return Due(settings=(("cut", now),))
        groups = [group for id_ in ids if (group := self._group(db, id_)) is not None]
        return Due(put=groups, settings=(("cutting", f"{now} {ids[-1]}"),))

    def _group(self, db: apsw.Connection, object_: int) -> Group | None:
        holders = rows.holding(db, object_)
        if not holders:
            return None
        # If the text cannot be read, the name is still searchable.
        text, _ = texts.beginning(db, object_, MAX_TEXT_CHARS)
        here = holders[:MAX_PLACES]
        files = list(dict.fromkeys(one.name for one in here))
        # The model reads a file name only if it says something; the words of all of them are searched in any case.
        title = " ".join(filter(tells, files))[:1000]
        mime = holders[0].mime_type
        found = passages(text, mime, title, self._measure)
        most = embedded(text, mime, len(found))
        items = [
            Item(
                key=str(number),
                text=passage.text,
                heading=" > ".join(passage.path)[-1000:],
                metadata={"first": passage.first, "last": passage.last},
                embed=number < most,
            )
            for number, passage in enumerate(found)
        ]
        if not items:
            items = [Item(key="name", text=holders[0].path, embed=False)]
        folders = {str(folder) for one in here for folder in PurePosixPath(one.path).parents}
        return Group(
            id=f"{self.prefix}{object_}",
            items=items,
            title=title,
            names=" ".join(
                dict.fromkeys(
                    (
                        *(name for name in files if not tells(name)),
                        *("/".join(PurePosixPath(one.path).parts[-3:-1]) for one in here),
                    )
                )
            )[:1000],
            metadata={
                "hash": holders[0].hash,
                "path": holders[0].path,
                "tags": sorted({tag for one in holders for tag in one.tags}),
                "extensions": sorted({one.extension for one in holders}),
                "collections": sorted({name for one in holders for name in one.collections}),
                "sessions": sorted({one.session for one in holders if one.session is not None}),
                "folders": sorted(folders - {".", "/", "//"}),
            },
        )
